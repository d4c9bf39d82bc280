// A trace's events in their own time: played, or at any moment of it.
import { $, ms } from "./text.js";

export class Player {
  constructor(trace, take, reset) {
    Object.assign(this, { trace, take, reset, taken: 0, playing: false, before: 0 });
    const times = trace.events.filter((event) => event.kind !== "begin").map((event) => event.at);
    [this.from, this.to] = [Math.min(...times.slice(0, 1)) - 0.02, Math.max(...times) + 0.1];
    this.now = this.from;
    this.wired = new AbortController();
    const on = (id, kind, act) => $(id).addEventListener(kind, act, { signal: this.wired.signal });
    on("play", "click", () => this.play(!this.playing));
    on("scrub", "input", () => {
      this.play(false);
      this.seek(this.from + (Number($("scrub").value) / 1000) * (this.to - this.from));
    });
    this.seek(this.to);
  }

  play(on) {
    if (on && this.now >= this.to) this.seek(this.from);
    this.playing = on;
    this.before = performance.now();
    $("play").textContent = on ? "Pause" : "Play";
  }

  tick() {
    if (!this.playing) return;
    const now = performance.now();
    this.seek(Math.min(this.now + ((now - this.before) / 1000) * Number($("speed").value), this.to));
    this.before = now;
    if (this.now >= this.to) this.play(false);
  }

  // Frames of the past stay; going back begins again from the first event, which a trace has few of.
  seek(time) {
    const { events } = this.trace;
    if (time < this.now && this.taken && events[this.taken - 1].at > time) {
      this.reset();
      this.taken = 0;
    }
    this.now = time;
    for (; this.taken < events.length && events[this.taken].at <= time; this.taken++) this.take(events[this.taken]);
    $("scrub").value = String(Math.round((1000 * (time - this.from)) / (this.to - this.from)));
    $("clock").textContent = `${ms(time - this.from)} of ${ms(this.to - this.from)}`;
  }

  stop() {
    this.wired.abort();
  }
}
