// The gateway's API with the key that this page holds in memory, and the stream of events.
export class Gateway {
  constructor(key) {
    this.key = key;
    this.model = "";
    this.last = "";
    this.stopped = new AbortController();
  }

  get headers() {
    return { Authorization: `Bearer ${this.key}` };
  }

  // Raises Error with the gateway's own sentence.
  async call(path, options = {}) {
    const response = await fetch(path, { ...options, headers: { ...this.headers, ...options.headers } });
    if (response.ok) return response;
    const said = await response.json().catch(() => null);
    throw Object.assign(new Error(said?.error?.message ?? `The gateway answered ${response.status}.`), { status: response.status });
  }

  async signIn() {
    const models = await (await this.call("v1/models")).json();
    this.model = models.data[0].id;
  }

  // Every event in turn, for ever: connects again from the latest one. `state` is told of the connection.
  async events(take, state) {
    for (let wait = 250; !this.stopped.signal.aborted; wait = Math.min(2 * wait, 8000)) {
      try {
        const headers = this.last ? { "Last-Event-ID": this.last } : {};
        const response = await this.call("ui/events", { headers, signal: this.stopped.signal });
        state("live");
        for await (const event of parsed(response.body, (id) => (this.last = id))) {
          wait = 250;
          if (event.kind === "refused") throw Object.assign(new Error(event.why), { status: 401 });
          take(event);
        }
      } catch (error) {
        if (this.stopped.signal.aborted) return;
        if (error.status === 401 || error.status === 403 || error.status === 404) return state("refused", error.message);
      }
      state("lost");
      await new Promise((done) => setTimeout(done, wait));
    }
  }

  // One chat; the tokens come as events, so that of the response only the end counts. Raises Error.
  // `signal` stops it: the gateway then ends the completion.
  async chat(messages, begun, signal) {
    const body = JSON.stringify({ model: this.model, messages, stream: true });
    const response = await this.call("v1/chat/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
    begun(response.headers.get("x-request-id"));
    let text = "";
    for await (const event of parsed(response.body)) {
      if (event.error) throw new Error(event.error.message);
      text += event.choices?.[0]?.delta?.content ?? "";
    }
    return text;
  }
}

// Server-sent events of a response (WHATWG HTML, 9.2.6), as JSON.
async function* parsed(body, seen = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let id = "", data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("id: ")) id = line.slice(4);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data && data !== "[DONE]") yield JSON.parse(data);
      if (id) seen(id);
    }
  }
}
