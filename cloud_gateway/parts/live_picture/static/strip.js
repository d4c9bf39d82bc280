// The time axis: passes of the target above, workers below, and between them frames as slanted lines. A line's width is
// the time that the frame was under way, so a round trip is as wide as it was long.
import { WORKERS } from "./model.js";
import { ms, safe } from "./text.js";

const LEFT = 104, TOP = 26, BAR = 30, LANE = 24, GAP = 64;

export class Strip {
  constructor(canvas, choose) {
    Object.assign(this, { canvas, choose, span: 2.4, end: 0, colours: null, passes: [] });
    canvas.addEventListener("pointermove", (event) => this.point(event, "hover"));
    canvas.addEventListener("click", (event) => this.point(event, "pin"));
    canvas.addEventListener("pointerleave", () => choose(null, "leave"));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.span = Math.min(20, Math.max(0.2, this.span * (event.deltaY > 0 ? 1.15 : 0.87)));
    }, { passive: false });
    for (const media of ["(prefers-color-scheme: dark)"]) matchMedia(media).addEventListener("change", () => (this.colours = null));
  }

  point(event, how) {
    const box = this.canvas.getBoundingClientRect();
    const time = this.end - this.span + ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * this.span;
    const near = this.passes.find((pass) => pass.from - 0.004 <= time && time <= pass.at + 0.004);
    if (near) this.choose(near, how);
  }

  palette() {
    if (!this.colours) {
      const style = getComputedStyle(document.documentElement);
      const names = ["ink", "muted", "line", "card", "local", "lookup", "other", "target", ...Array.from({ length: WORKERS }, (_, i) => `w${i}`)];
      this.colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    }
    return this.colours;
  }

  // Draws `run` with `end` at the right edge; what happens after `now` is not there yet.
  draw(model, run, end, now, marked) {
    const box = this.canvas.getBoundingClientRect(), scale = devicePixelRatio || 1;
    if (this.still(run, end, now, marked, box.width, scale)) return;
    const lanes = run ? [...run.workers.keys()] : [];
    const height = TOP + BAR + GAP + Math.max(lanes.length, 1) * LANE + 22;
    if (this.canvas.style.height !== `${height}px`) this.canvas.style.height = `${height}px`;
    const [w, h] = [Math.round(box.width * scale), Math.round(height * scale)];
    if (this.canvas.width !== w || this.canvas.height !== h) [this.canvas.width, this.canvas.height] = [w, h];
    const c = this.canvas.getContext("2d"), colour = this.palette(), width = box.width;
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, width, height);
    this.end = end;
    const x = (time) => LEFT + ((time - end + this.span) / this.span) * (width - LEFT);
    if (run) this.grid(c, colour, x, end, width, height, run.began ?? 0);
    const low = TOP + BAR, laneY = (name) => low + GAP + Math.max(lanes.indexOf(name), 0) * LANE;
    c.font = "12px system-ui, sans-serif";
    this.label(c, colour.ink, "target", TOP + BAR / 2);
    if (!run) return;
    c.save();
    c.beginPath();
    c.rect(LEFT, 0, width - LEFT, height);
    c.clip();
    const from = end - this.span, seen = (list) => list.slice(below(list, from - 1), below(list, now + 1));
    for (const name of lanes) {
      const given = run.workers.get(name), y = laneY(name);
      c.strokeStyle = colour[model.by({ worker: name }).hue];
      c.lineWidth = 2;
      line(c, x(Math.max(given.from, from)), y, x(Math.min(given.to ?? now, run.ended ?? now, now)), y);
    }
    this.passes = seen(run.passes).filter((pass) => pass.from < now);
    for (const pass of this.passes) if (pass.at <= now && pass.rtt) for (const name of lanes) this.commit(c, colour, run, name, pass, x, low, laneY(name), now);
    for (const frame of seen(run.frames)) this.frame(c, colour[model.by({ worker: frame.worker }).hue], frame, x, low, laneY(frame.worker), now);
    for (const read of seen(run.reads)) bar(c, colour.line, x(read.from), TOP + BAR - 8, x(Math.min(read.at, now)), 8);
    for (const draft of seen(run.drafts)) bar(c, colour.local, x(draft.from), low + 5, x(Math.min(draft.at, now)), 6);
    for (const pass of this.passes) this.pass(c, colour, model, pass, x, now, pass === marked);
    c.restore();
    for (const name of lanes) this.label(c, colour[model.by({ worker: name }).hue], safe(name), laneY(name));
    this.ruler(c, colour, this.passes, width);
  }

  // Whether the picture is the latest one: a page that nobody uses takes no processor.
  still(run, end, now, marked, ...size) {
    const moving = run && (run.ended === null || now < run.ended + this.span) ? now : 0;
    const counts = run ? [run.number, run.passes.length, run.frames.length, run.drafts.length, run.reads.length] : [];
    const state = [this.palette(), run && end, moving, marked, this.span, ...size, ...counts];
    const same = state.length === this.state?.length && state.every((one, index) => one === this.state[index]);
    this.state = state;
    return same;
  }

  grid(c, colour, x, end, width, height, zero) {
    const step = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5].find((s) => (s / this.span) * (width - LEFT) > 70) ?? 5;
    c.strokeStyle = colour.line;
    c.fillStyle = colour.muted;
    c.font = "11px system-ui, sans-serif";
    c.lineWidth = 1;
    // Counted by the lines that fit, since adding a step to a huge time may leave it as it is.
    const first = Math.ceil((end - this.span - zero) / step);
    for (let nth = 0; nth <= this.span / step; nth++) {
      const n = first + nth, time = zero + n * step;
      if (!(time < end)) break;
      const at = Math.round(x(time)) + 0.5;
      line(c, at, TOP - 6, at, height - 18);
      if (n >= 0 && at < width - 24) c.fillText(n ? ms(n * step) : "0", at - (n ? 14 : 3), height - 5);
    }
  }

  label(c, colour, text, y) {
    c.fillStyle = colour;
    c.font = "600 12px system-ui, sans-serif";
    while (text.length > 2 && c.measureText(text).width > LEFT - 8) text = text.slice(0, -2) + "…";
    c.fillText(text, 0, y + 4);
  }

  // A bar with a cell for each token: the candidates that it took, and the target's own.
  pass(c, colour, model, pass, x, now, on) {
    const left = x(pass.from), right = x(Math.min(pass.at, now)), wide = Math.max(right - left - 1, 1);
    c.fillStyle = colour.line;
    c.globalAlpha = 0.7;
    c.fillRect(left, TOP, wide, BAR);
    c.globalAlpha = 1;
    if (pass.at <= now) {
      const each = BAR / pass.tokens.length;
      pass.tokens.forEach((one, index) => {
        const hue = model.by(one).hue;
        c.fillStyle = colour[hue];
        c.globalAlpha = hue === "target" ? 0.55 : 1;
        c.fillRect(left, TOP + BAR - (index + 1) * each, wide, Math.max(each - 1, 0.5));
      });
      c.globalAlpha = 1;
    }
    if (!on) return;
    c.strokeStyle = colour.ink;
    c.lineWidth = 2;
    c.strokeRect(left - 1, TOP - 3, wide + 2, BAR + 6);
  }

  frame(c, colour, frame, x, low, y, now) {
    if (frame.sent > now) return;
    const done = Math.min(1, (now - frame.sent) / Math.max(frame.at - frame.sent, 1e-6));
    const [x0, x1] = [x(frame.sent), x(frame.sent + (frame.at - frame.sent) * done)], y1 = y + (low - y) * done;
    c.strokeStyle = c.fillStyle = colour;
    c.globalAlpha = frame.taken === "used" ? 0.9 : 0.32;
    c.lineWidth = frame.taken === "used" ? 1.7 : 1.2;
    line(c, x0, y, x1, y1);
    c.beginPath();
    c.arc(x1, y1, done < 1 ? 3.4 : 2, 0, 7);
    c.fill();
    c.globalAlpha = 1;
  }

  commit(c, colour, run, name, pass, x, low, y, now) {
    const given = run.workers.get(name);
    if (pass.at < given.from || (given.to !== null && pass.at > given.to)) return;
    const done = Math.min(1, (now - pass.at) / (pass.rtt / 2));
    c.strokeStyle = colour.muted;
    c.globalAlpha = 0.5;
    c.lineWidth = 1;
    c.setLineDash([2, 3]);
    line(c, x(pass.at), low, x(pass.at + (pass.rtt / 2) * done), low + (y - low) * done);
    c.setLineDash([]);
    c.globalAlpha = 1;
  }

  ruler(c, colour, passes, width) {
    const rtt = passes.findLast((pass) => pass.rtt)?.rtt;
    if (!rtt) return;
    const wide = (rtt / this.span) * (width - LEFT), y = 11, right = width - 6, left = right - wide;
    c.strokeStyle = c.fillStyle = colour.ink;
    c.lineWidth = 1.5;
    line(c, left, y, right, y);
    for (const end of [left, right]) line(c, end, y - 4, end, y + 4);
    c.font = "12px system-ui, sans-serif";
    const text = `a round trip, ${ms(rtt)}`;
    c.fillText(text, left - c.measureText(text).width - 8, y + 4);
  }
}

function line(c, x0, y0, x1, y1) {
  c.beginPath();
  c.moveTo(x0, y0);
  c.lineTo(x1, y1);
  c.stroke();
}

function bar(c, colour, left, y, right, height) {
  c.fillStyle = colour;
  c.fillRect(left, y, Math.max(right - left - 1, 1), height);
}

// Index of the first that ended at `time` or later; they are in order of their ends.
function below(list, time) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].at < time) low = middle + 1;
    else high = middle;
  }
  return low;
}
