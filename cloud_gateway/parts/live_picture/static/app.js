// The page: signs in, takes events from the gateway or from a trace, and draws once a frame what has changed.
import { costs, Model } from "./model.js";
import { Gateway } from "./net.js";
import { Player } from "./player.js";
import { Runs } from "./runs.js";
import { Strip } from "./strip.js";
import { $, make, many, ms, safe, share } from "./text.js";
import { drawTree, sentence, svgOf } from "./tree.js";

const LAG = 0.15; // seconds behind the gateway, so that frames are seen on their way
const EVERY = 200; // milliseconds between drawings of figures, which nobody reads faster
const page = {
  model: new Model(), gateway: null, player: null, dirty: new Set(), current: null, pinned: null, hovered: null,
  shown: undefined, offset: null, talk: [], frames: 0, drawn: undefined, stale: true, next: 0, stopping: null,
};
const runs = new Runs($("runs"), page.model, choose);
const strip = new Strip($("strip"), choose);
globalThis.edgespecPage = page; // for a look from the console, and for the tests

// --- what is chosen ---------------------------------------------------------------------------------------------

function choose(pass, how) {
  if (how === "free") page.pinned = page.hovered = null;
  else if (how === "leave") page.hovered = null;
  else if (how === "hover") page.hovered = pass;
  else [page.pinned, page.hovered] = [pass, null];
  if (pass) page.current = pass.run;
  if (pass && how === "key") say(`${sentence(pass)}. ${pass.tokens.map((one) => `${safe(one.text)}, by ${page.model.by(one).name}`).join("; ")}`);
}

function say(text) {
  $("say").textContent = text;
}

// --- events -----------------------------------------------------------------------------------------------------

function take(event) {
  if (event.kind === "hello") {
    page.offset = performance.now() / 1000 - event.now;
    if (!event.kept) reset();
    return;
  }
  const run = page.model.apply(event);
  if (!run) return (page.dirty.add("workers"), undefined);
  page.dirty.add(run);
  if (event.kind === "begin" && !page.pinned && (!page.current || page.current.ended !== null)) page.current = run;
  if (event.kind === "end") say(`Completion ${run.number} ended: ${many(run.tokens, "token")} in ${many(run.passes.length, "pass", "passes")}.`);
}

export function reset() {
  Object.assign(page, { model: new Model(), current: null, pinned: null, hovered: null, shown: undefined });
  page.dirty.clear();
  page.dirty.add("workers");
  runs.clear(page.model);
}

// --- one frame --------------------------------------------------------------------------------------------------

function frame() {
  page.frames += 1;
  page.player?.tick();
  if (page.dirty.size) {
    runs.draw([...page.dirty].filter((run) => run !== "workers"));
    page.dirty.clear();
    page.stale = true;
  }
  if (page.drawn !== page.current || (page.stale && performance.now() > page.next)) {
    drawFigures(page.current);
    drawWorkers();
    drawLegend();
    Object.assign(page, { drawn: page.current, stale: false, next: performance.now() + EVERY });
  }
  const run = page.current;
  const pass = page.hovered ?? page.pinned ?? run?.passes[run.passes.length - 1] ?? null;
  const key = pass && `${pass.run.number} ${pass.number} ${pass.late.length}`;
  if (key !== page.shown) {
    page.shown = key;
    drawPass(pass);
  }
  drawStrip(run, pass);
  requestAnimationFrame(frame);
}

function drawPass(pass) {
  runs.mark(page.hovered ?? page.pinned);
  $("about").textContent = pass ? sentence(pass) : "Ask something, and the latest pass is shown here.";
  $("copy").disabled = !pass;
  if (pass) drawTree($("tree"), page.model, pass);
  else $("tree").replaceChildren();
}

function drawStrip(run, pass) {
  const now = page.player ? page.player.now : page.offset === null ? 0 : performance.now() / 1000 - page.offset - LAG;
  let end = now;
  if (run && !page.player) {
    const last = run.ended ?? now;
    end = Math.min(now, last + 0.3);
    if ((page.hovered ?? page.pinned) && strip.canvas.matches(":hover") === false) end = Math.min(end, Math.max(pass.at + strip.span / 2, run.began + strip.span));
    else if (strip.canvas.matches(":hover")) end = strip.end;
  } else if (page.player) {
    end = Math.max(now + 0.12 * strip.span, page.player.from + strip.span * 0.9);
    const out = (page.hovered ?? page.pinned) && (pass.at > end || pass.from < end - strip.span);
    if (!page.player.playing && strip.canvas.matches(":hover")) end = strip.end || end;
    else if (!page.player.playing && out) end = Math.max(pass.at, page.player.from + 0.4 * strip.span) + strip.span / 2;
  }
  strip.draw(page.model, run, end, now, pass);
}

// What the drafts were worth to this completion, in one sentence.
function headline(run, found) {
  if (!run || !found?.took) return "";
  const times = found.plain / found.took;
  if (!run.candidates && !found.drafts) return `Nothing was drafted for this completion${run.off ? `: ${safe(run.off)}` : ""}.`;
  if (times >= 1.02) return `Drafts made this completion about ${times.toFixed(2)} times as fast.`;
  if (times > 0.98) return "Drafts neither gained nor cost time in this completion.";
  return `Drafts did not pay in this completion: about ${times.toFixed(2)} times as fast as without${run.guard ? `, and the gateway saw it (${safe(run.guard.why)})` : ""}.`;
}

function drawFigures(run) {
  const found = run && costs(run);
  $("headline").textContent = headline(run, found);
  if (!found) return $("figures").replaceChildren(...[["–", "tokens a pass"], ["–", "of draft passes taken off the gateway"], ["–", "against no drafts"]].map(([a, b]) => tile(a, b)));
  const off = Math.max(0, 1 - found.drafts / found.expected);
  const most = Math.max(found.took, found.plain);
  const two = make("div", { className: "two" });
  for (const [words, seconds, hue] of [["with drafts", found.took, "w0"], ["without", found.plain, "target"]]) {
    const line = make("span", { className: `fill ${hue}` });
    line.style.width = `${(100 * seconds) / most}%`;
    two.append(make("span", { textContent: words }), make("span", { className: "track" }, line), make("span", { textContent: `${hue === "target" ? "≈ " : ""}${ms(seconds)}` }));
  }
  const drafted = run.candidates > 0; // without a candidate there was nothing to take off
  $("figures").replaceChildren(
    tile((run.tokens / found.passes).toFixed(2), `tokens a pass: ${run.tokens} in ${found.passes}`),
    tile(drafted ? `${Math.round(100 * off)} %` : "–", `of draft passes taken off the gateway: it made ${found.drafts}, co-located drafting at k = 2 makes ${found.expected}`),
    tile(found.took ? `${(found.plain / found.took).toFixed(2)}×` : "–", `as fast as without drafts, an estimate: ${run.tokens} passes of ${ms(found.each)} each, as measured`, two),
  );
}

const tile = (figure, words, ...more) => make("div", { className: "card figure" }, make("strong", { textContent: figure }), make("span", { textContent: words }), ...more);

function drawLegend() {
  const sources = new Map();
  for (const run of page.model.runs.values()) for (const [name, one] of run.sources) sources.set(name, { ...one, count: (sources.get(name)?.count ?? 0) + one.count });
  const total = [...sources.values()].reduce((sum, one) => sum + one.count, 0);
  $("legend").replaceChildren(...[...sources.values()].sort((a, b) => b.count - a.count).map((one) => make("li", {}, make("span", { className: `t ${one.hue}`, textContent: safe(one.name) }), ` ${share(one.count, total)}`)));
}

function drawWorkers() {
  const rows = page.model.rows?.length ? page.model.rows.map(listed) : [...page.model.machines.values()].map(seen);
  $("workers").replaceChildren(...rows.map((row) => make("tr", {},
    make("th", { scope: "row" }, make("span", { className: `dot ${row.hue}`, "aria-hidden": "true" }), safe(row.name)),
    ...[row.does, row.rtt, row.runs].map((text, i) => make("td", { textContent: safe(text ?? "–"), className: i ? "" : `is-${row.kind}` })))));
  if (!rows.length) $("workers").replaceChildren(make("tr", {}, make("td", { colSpan: 4, textContent: "No worker has drafted for this API key since the page was opened." })));
  const run = page.current;
  const phi = run?.usage?.phi;
  const limit = phi && `${phi.leaves} tokens left open where the worker was: waiting for it paid ${phi.nats === null ? "at every entropy" : `up to ${phi.nats.toFixed(2)} nats of entropy`}, and ${phi.above} were above the limit.`;
  const why = [limit, run?.off && `No worker drafts: ${run.off}.`, run?.guard && `The policy’s mode is ${run.guard.mode} (${run.guard.why}).`, run?.usage?.why && `The gateway drafted: ${run.usage.why}.`, run?.usage?.why_not_local && `The gateway’s own draft made no pass: ${run.usage.why_not_local}.`];
  $("why-off").textContent = safe(why.filter(Boolean).join(" "));
}

// A worker as its completions show it.
function seen(one) {
  return { name: one.name, hue: page.model.by({ worker: one.name }).hue, kind: one.state === "gone" ? "bad" : "good", does: does(one.state, one, one.why), rtt: one.rtt ? ms(one.rtt) : "–", runs: one.runs.size };
}

// One sentence: its state, what it wrote of the tokens shown here, and the reason for its state.
function does(state, known, why) {
  const written = known?.accepted ?? 0;
  const tokens = [...page.model.runs.values()].reduce((sum, run) => sum + run.tokens, 0);
  const wrote = known?.verified ? `wrote ${share(written, tokens)} of the tokens here (${written} of ${known.verified} verified)` : "wrote none of the tokens here";
  return `${state}; ${wrote}${why ? `; ${why}` : ""}`;
}

// A worker as the gateway lists it for its operator.
function listed(row) {
  const known = page.model.machines.get(row.name);
  const state = row.standing !== "paired" ? row.standing : !row.linked ? "away" : row.paused ? "paused" : known?.state || "linked";
  const kind = row.standing !== "paired" ? "bad" : row.linked && !row.paused ? "good" : "off";
  return { name: row.name, hue: known ? page.model.by({ worker: row.name }).hue : "none", kind, state, rtt: row.rtt_ms === null ? "–" : ms(row.rtt_ms / 1000), does: [state, row.quarantine ?? row.paused, row.helps].filter(Boolean).join("; "), runs: row.requests ?? 0 };
}

// --- the parts of the page ------------------------------------------------------------------------------------------

function show(part) {
  $("sign-in").hidden = part !== "sign-in";
  $("picture").hidden = part === "sign-in";
  $("player").hidden = part !== "trace";
  $("ask").hidden = part === "trace";
  $("leave").hidden = !page.gateway;
  page.dirty.add("workers");
  drawFigures(page.current);
}

function state(what, why = "") {
  $("state").textContent = { live: `live: ${safe(page.gateway?.model ?? "")}`, lost: "connection lost, trying again", refused: "signed out" }[what] ?? what;
  $("state").className = what;
  if (what !== "refused") return;
  leave();
  $("refused").textContent = safe(why);
}

function leave() {
  page.stopping?.abort();
  page.gateway?.stopped.abort();
  Object.assign(page, { gateway: null, talk: [] });
  reset();
  show("sign-in");
}

$("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("refused").textContent = "";
  const gateway = new Gateway($("key").value.trim());
  try {
    await gateway.signIn();
  } catch (error) {
    $("refused").textContent = safe(error.message);
    return $("key").focus();
  }
  $("key").value = "";
  page.gateway = gateway;
  show("live");
  gateway.events(take, state);
  $("prompt").focus();
});

$("leave").addEventListener("click", () => {
  leave();
  state("signed out");
});

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text) return;
  const messages = [...page.talk, { role: "user", content: text }];
  $("prompt").value = $("failed").textContent = "";
  choose(null, "free");
  runs.ask(text);
  const talk = page.talk;
  page.stopping = new AbortController();
  asking(true);
  try {
    const content = await page.gateway.chat(messages, (id) => runs.begun(id, text), page.stopping.signal);
    if (page.talk === talk) page.talk = [...messages, { role: "assistant", content }];
  } catch (error) {
    if (!page.stopping.signal.aborted) $("failed").textContent = safe(error.message);
    if (!$("prompt").value) $("prompt").value = text; // nothing that was typed is lost
  } finally {
    runs.answered();
    asking(false);
  }
});

function asking(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
}

$("stop").addEventListener("click", () => page.stopping?.abort());

$("new").addEventListener("click", () => {
  page.talk = [];
  runs.clear(page.model);
  $("prompt").focus();
  say("New chat: the next question is sent without the earlier ones.");
});

$("formatted").addEventListener("change", () => runs.format($("formatted").checked));

// To the clipboard, or as a file if the browser does not permit that.
$("copy").addEventListener("click", async () => {
  const pass = page.hovered ?? page.pinned ?? page.current?.passes.at(-1);
  const picture = svgOf($("tree"), page.model, pass);
  try {
    await navigator.clipboard.writeText(picture);
    say("The tree of this pass is in the clipboard as SVG.");
  } catch {
    const link = make("a", { href: URL.createObjectURL(new Blob([picture], { type: "image/svg+xml" })), download: `pass-${pass.number + 1}.svg` });
    link.click();
    URL.revokeObjectURL(link.href);
    say("The tree of this pass is saved as an SVG file.");
  }
});

$("whose").addEventListener("change", () => {
  $("runs").classList.toggle("only-mine", $("whose").value === "mine");
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});

$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "";
  const next = { "": "dark", dark: "light", light: "" }[now];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = `Theme: ${next || "auto"}`;
  strip.colours = null;
});

// --- a trace ------------------------------------------------------------------------------------------------------

function playTrace(trace) {
  reset();
  page.player = new Player(trace, take, reset);
  page.offset = null;
  show("trace");
  $("state").textContent = "a played trace, which holds no text: #1 is a token";
}

// Back to the live picture of the same key: closing a trace signs nobody out.
$("close").addEventListener("click", () => {
  if (!page.gateway) {
    page.player.stop();
    page.player = null;
    return leave();
  }
  const { key, model } = page.gateway;
  page.player.stop();
  reset();
  Object.assign(page, { player: null, gateway: Object.assign(new Gateway(key), { model }) });
  show("live");
  page.gateway.events(take, state);
});

// The events in a file of `cloud-gateway replay --html`; nothing of it is run, and what it shows is text.
async function eventsIn(file) {
  const written = new DOMParser().parseFromString(await file.text(), "text/html").getElementById("trace");
  const found = written && JSON.parse(written.textContent);
  if (!Array.isArray(found?.events) || !found.events.length) throw new Error("This file is not one of `cloud-gateway replay --html`.");
  return found;
}

async function opened(file) {
  $("failed").textContent = $("refused").textContent = "";
  try {
    if (file.name.endsWith(".html")) {
      const found = await eventsIn(file);
      page.gateway?.stopped.abort();
      return playTrace(found);
    }
    if (!page.gateway) throw new Error("Sign in first: the gateway checks a trace and unpacks it. Without a key, drop the file that `cloud-gateway replay TRACE --html FILE` writes.");
    const response = await page.gateway.call("ui/trace", { method: "POST", body: file });
    const gateway = page.gateway;
    gateway.stopped.abort();
    playTrace(await response.json());
  } catch (error) {
    $(page.gateway ? "failed" : "refused").textContent = safe(error.message);
  }
}

$("file").addEventListener("change", () => $("file").files[0] && opened($("file").files[0]));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files[0]) opened(event.dataTransfer.files[0]);
});

const held = document.getElementById("trace"); // in the file that `cloud-gateway replay --html` writes
if (held) playTrace(JSON.parse(held.textContent));
else show("sign-in");
for (const part of ["close", "drop"]) $(part).hidden = Boolean(held);
requestAnimationFrame(frame);
