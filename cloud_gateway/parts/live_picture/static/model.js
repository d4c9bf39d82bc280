// What the events say, live or from a trace: completions with their passes and frames, and the workers seen in them.
// Nothing here touches the page.
export const WORKERS = 4; // hues of workers; a fifth has the first one's hue

const SOURCES = {
  local: "local draft", grammar: "grammar", lookup: "lookup", answers: "earlier completions",
  target: "the target itself",
};
export const FATES = { accepted: "accepted", refused: "refused", below: "below a refused one", late: "too late" };

export class Model {
  constructor() {
    this.runs = new Map();
    this.machines = new Map(); // workers by name, in the order in which they drafted
    this.rows = null; // what an operator's key sees of all of them
    this.last = 0; // time of the latest event
  }

  // Who drafted: a name for people and a class for the colour.
  by(one) {
    if (one.worker !== undefined) return { name: one.worker, hue: `w${this.machine(one.worker).index % WORKERS}` };
    const hue = { local: "local", target: "target", grammar: "other" }[one.source] ?? "lookup";
    return { name: SOURCES[one.source] ?? one.source, hue };
  }

  machine(name) {
    if (!this.machines.has(name)) {
      this.machines.set(name, { name, index: this.machines.size, rtt: 0, verified: 0, accepted: 0, runs: new Set(), state: "", why: "" });
    }
    return this.machines.get(name);
  }

  // Takes one event in; returns the completion that it belongs to.
  apply(event) {
    if (event.kind === "workers") {
      this.rows = event.rows;
      return null;
    }
    let run = this.runs.get(event.run);
    if (event.kind === "begin" || !run) {
      run = {
        number: event.run, id: event.id ?? "", prompt: event.prompt ?? 0, policy: event.policy ?? "", off: event.off ?? null,
        began: event.kind === "begin" && event.at > 0 ? event.at : null, ended: null, finish: "", usage: null,
        passes: [], frames: [], drafts: [], reads: [], tokens: 0, candidates: 0, accepted: 0, draftPasses: 0,
        places: new Map(), sources: new Map(), workers: new Map(), guard: null, fault: "", slot: false,
      };
      this.runs.set(event.run, run);
      if (event.kind === "begin") return run;
    }
    if (run.began === null) run.began = event.at;
    this.last = Math.max(this.last, event.at);
    this["on_" + event.kind]?.(run, event);
    return run;
  }

  on_slot(run) {
    run.slot = true;
  }

  on_read(run, event) {
    run.reads.push({ from: event.at - event.took, at: event.at, count: event.count });
  }

  on_off(run, event) {
    run.off = event.why;
  }

  on_guard(run, event) {
    run.guard = event;
  }

  on_fault(run, event) {
    run.fault = event.why;
  }

  on_worker(run, event) {
    const machine = this.machine(event.worker);
    machine.runs.add(run.number);
    if (event.what === "assigned" || event.what === "beside") {
      run.workers.set(event.worker, { from: event.at, to: null });
      run.off = null;
      [machine.state, machine.why] = ["drafts", ""];
    } else {
      const given = run.workers.get(event.worker);
      if (given) given.to = event.at;
      const why = { gone: "it left, paused or was revoked", declined: "it declined the request", useless: "nothing of it was accepted", needed: "another request took it" };
      [machine.state, machine.why] = [event.what === "gone" ? "gone" : "idle", why[event.what] ?? event.what];
    }
  }

  on_frame(run, event) {
    const machine = this.machine(event.worker);
    if (event.rtt) machine.rtt = event.rtt;
    run.frames.push({ at: event.at, sent: event.at - event.rtt / 2, worker: event.worker, taken: event.taken, count: event.count });
    for (const [position, text, right] of event.late) {
      run.places.get(position)?.late.push({ position, text, right, worker: event.worker });
    }
  }

  on_draft(run, event) {
    run.draftPasses += 1;
    run.drafts.push({ from: event.since, at: event.at, count: event.count });
  }

  on_pass(run, event) {
    const pass = {
      run, number: run.passes.length, from: event.since, at: event.at, first: event.first, root: event.root,
      nodes: event.nodes, tokens: event.tokens, rtt: event.rtt, plain: event.plain, late: [],
    };
    for (const node of event.nodes) {
      const taken = node.fate === "accepted";
      run.candidates += 1;
      run.accepted += taken;
      if (node.worker !== undefined) {
        const machine = this.machine(node.worker);
        machine.verified += 1;
        machine.accepted += taken;
      }
    }
    pass.tokens.forEach((token, index) => {
      run.places.set(event.first + index, pass);
      const { name, hue } = this.by(token);
      const source = run.sources.get(name) ?? { name, hue, count: 0 };
      source.count += 1;
      run.sources.set(name, source);
    });
    run.tokens += pass.tokens.length;
    run.passes.push(pass);
  }

  on_end(run, event) {
    [run.ended, run.finish, run.usage] = [event.at, event.finish, event.usage];
    if (event.usage.why_off) run.off = event.usage.why_off;
    for (const name of run.workers.keys()) {
      const machine = this.machine(name);
      if (machine.state === "drafts" && [...this.runs.values()].every((one) => one.ended !== null || !one.workers.has(name))) machine.state = "idle";
    }
  }
}

// What a completion cost, and what it would have cost: one pass over one row for each token, by the gateway's own
// measured time of such a pass. That is an estimate, and named as one.
export function costs(run) {
  const passes = run.passes.length;
  if (!passes) return null;
  const first = run.passes[0].from;
  const took = run.passes[passes - 1].at - first;
  const plain = run.passes.reduce((sum, pass) => sum + pass.tokens.length * pass.plain, 0);
  const drafted = run.usage ? passes - run.usage.undrafted_rounds : run.passes.filter((pass) => pass.nodes.length).length || passes;
  return { passes, took, plain, each: plain / run.tokens, expected: 2 * drafted, drafts: run.draftPasses };
}
