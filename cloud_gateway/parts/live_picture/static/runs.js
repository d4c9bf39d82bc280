// The completions as text, each token in the colour of who drafted it. Pointer, touch or arrow keys choose a pass.
import { markdown } from "./markdown.js";
import { make, many, ms, safe } from "./text.js";

export class Runs {
  constructor(place, model, chosen) {
    Object.assign(this, { place, model, chosen });
    this.cards = new Map();
    this.marked = null;
    this.asked = new Map(); // what was asked, by the id of the request
    this.formatted = false; // whether completions that have ended are shown as Markdown
    this.waiting = null; // the card of a question whose completion has not begun
    const over = (event) => {
      const span = event.target.closest?.(".t");
      if (span) this.choose(this.pass(span), event.type === "click" ? "pin" : "hover");
    };
    place.addEventListener("pointerover", over);
    place.addEventListener("click", over);
    place.addEventListener("pointerleave", () => this.choose(null, "leave"));
    place.addEventListener("keydown", (event) => this.key(event));
  }

  clear(model) {
    this.model = model;
    this.cards.clear();
    this.marked = this.waiting = null;
    this.place.replaceChildren();
  }

  // Shows a question before the gateway has answered, and takes it away once its completion is there or it failed.
  ask(text) {
    this.waiting = make("article", { className: "run running mine" }, make("p", { className: "asked", textContent: safe(text) }), make("div", { className: "tokens" }), make("p", { className: "foot", textContent: "is sent" }));
    this.place.append(this.waiting);
    this.place.scrollTop = this.place.scrollHeight;
  }

  begun(id, text) {
    this.asked.set(id, text);
    this.answered();
    for (const [number, card] of this.cards) {
      if (this.model.runs.get(number)?.id === id) this.add(this.model.runs.get(number), card);
    }
  }

  answered() {
    this.waiting?.remove();
    this.waiting = null;
  }

  pass(span) {
    return this.model.runs.get(Number(span.closest(".run").dataset.run))?.passes[Number(span.dataset.pass)];
  }

  choose(pass, how) {
    this.chosen(pass ?? null, how);
  }

  key(event) {
    const card = event.target.closest(".run");
    if (!card || event.target.className !== "tokens") return;
    const passes = this.model.runs.get(Number(card.dataset.run)).passes;
    const at = this.marked?.run.number === Number(card.dataset.run) ? this.marked.number : null;
    const step = { ArrowRight: 1, ArrowDown: 10, ArrowLeft: -1, ArrowUp: -10 }[event.key];
    if (event.key === "Escape") this.choose(null, "free");
    else if (event.key === "Home") this.choose(passes[0], "key");
    else if (event.key === "End") this.choose(passes[passes.length - 1], "key");
    else if (step) this.choose(passes[at === null ? (step > 0 ? 0 : passes.length - 1) : Math.min(Math.max(at + step, 0), passes.length - 1)], "key");
    else return;
    event.preventDefault();
  }

  // Shows what is new of these completions; the place is measured once, since each measurement lays the page out.
  draw(found) {
    const atEnd = this.place.scrollHeight - this.place.scrollTop - this.place.clientHeight < 60;
    for (const run of found) this.add(run);
    if (atEnd) this.place.scrollTop = this.place.scrollHeight;
  }

  add(run) {
    let card = this.cards.get(run.number);
    if (!card) {
      const asked = make("p", { className: "asked" });
      const tokens = make("div", { className: "tokens", tabIndex: 0, role: "group", "aria-label": `Completion ${run.number}: arrow keys go from pass to pass` });
      const foot = make("p", { className: "foot" });
      const written = make("div", { className: "written" });
      const article = make("article", { className: "run" }, asked, tokens, written, foot);
      article.dataset.run = run.number;
      card = { article, asked, tokens, written, foot, shown: 0, spans: [] };
      this.cards.set(run.number, card);
      this.place.insertBefore(article, this.waiting);
      while (this.cards.size > 24) this.drop(this.cards.keys().next().value);
    }
    card.article.classList.toggle("mine", this.asked.has(run.id));
    card.asked.textContent = this.asked.has(run.id) ? safe(this.asked.get(run.id)) : `Completion ${run.number}, a prompt of ${many(run.prompt, "token")}`;
    for (; card.shown < run.passes.length; card.shown++) {
      const pass = run.passes[card.shown];
      card.spans.push(pass.tokens.map((token, index) => {
        const span = make("span", { className: `t ${this.model.by(token).hue}${index ? "" : " first"}`, textContent: safe(token.text) });
        span.dataset.pass = pass.number;
        card.tokens.append(span, ...(token.text.endsWith("\u2009") ? [make("wbr")] : [])); // a trace's numbers
        return span;
      }));
    }
    card.foot.textContent = foot(run);
    card.article.classList.toggle("running", run.ended === null);
    if (this.formatted) this.write(card, run);
  }

  // Shows completions as Markdown, or as tokens again. One that runs is shown by its tokens until it ends.
  format(on) {
    this.formatted = on;
    this.place.classList.toggle("formatted", on);
    if (on) for (const [number, card] of this.cards) this.write(card, this.model.runs.get(number));
  }

  write(card, run) {
    if (run.ended === null || card.written.hasChildNodes()) return;
    card.written.append(...markdown(run.passes.flatMap((pass) => pass.tokens.map((one) => one.text)).join("")));
  }

  drop(number) {
    this.cards.get(number).article.remove();
    this.cards.delete(number);
    this.model.runs.delete(number);
  }

  mark(pass) {
    for (const [one, on] of [[this.marked, false], [pass, true]]) {
      const spans = one && this.cards.get(one.run.number)?.spans[one.number];
      spans?.forEach((span) => span.classList.toggle("on", on));
    }
    this.marked = pass;
  }
}

// Time to the first token, and tokens a second while decoding.
function speed(run) {
  const [first] = run.passes;
  const last = run.passes[run.passes.length - 1];
  const took = last.at - first.from;
  return [run.began === null ? "" : `first token after ${ms(first.at - run.began)}`, took > 0 ? `${(run.tokens / took).toFixed(1)} tokens/s` : ""].filter(Boolean);
}

function foot(run) {
  if (!run.passes.length) return run.fault ? safe(run.fault) : run.ended === null ? (run.slot ? "reads the prompt" : "waits for a slot") : `ended: ${run.finish}`;
  const parts = [many(run.tokens, "token"), many(run.passes.length, "pass", "passes"), `policy ${run.policy}`, ...speed(run)];
  if (run.ended !== null) parts.push({ stop: "complete", length: "cut at its limit", cancelled: "cancelled", error: "failed" }[run.finish] ?? run.finish);
  return parts.join(" · ") + (run.fault ? ` · ${safe(run.fault)}` : "");
}
