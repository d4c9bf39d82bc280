// One pass of the target as a tree of candidates: root at the left, one level to the right for each position.
import { FATES } from "./model.js";
import { make, many, ms, token } from "./text.js";

const SIGN = { accepted: "✓", refused: "✕", below: "·", late: "◷", target: "◆" };

// The candidates of a pass below its root, each with the nodes below it in the order in which they are drawn.
function nested(pass) {
  const children = new Map(); // row -> nodes below it
  const add = (parent, node) => children.set(parent, [...(children.get(parent) ?? []), node]);
  const path = [0]; // rows of the accepted path, by depth
  pass.nodes.forEach((node, index) => {
    add(node.parent, { ...node, row: index + 1 });
    if (node.fate === "accepted") path.push(index + 1);
  });
  const own = pass.tokens[pass.tokens.length - 1];
  if (own.source === "target") add(path[path.length - 1], { text: own.text, fate: "target", source: "target" });
  const late = new Map(pass.late.map((one) => [`${one.position} ${one.worker} ${one.text}`, one])); // each once
  for (const one of late.values()) add(path[Math.min(one.position - pass.first, path.length - 1)], { ...one, fate: "late" });

  const below = (row) => [...(children.get(row) ?? [])].sort((a, b) => order(a) - order(b)).map((node) => ({ ...node, below: node.row ? below(node.row) : [] }));
  return below(0);
}

export function drawTree(place, model, pass) {
  const item = (node) => {
    const { name, hue } = model.by(node);
    const words = node.fate === "target" ? "chosen by the target itself" : `${FATES[node.fate]}, drafted by ${name}`;
    const label = make("span", { className: `node ${hue} ${node.fate}`, title: words + (node.chance === undefined ? "" : `, which gave it ${Math.round(100 * node.chance)} %`) },
      make("i", { textContent: SIGN[node.fate], "aria-hidden": "true" }), make("bdi", { textContent: token(node.text) }), make("span", { className: "out", textContent: `, ${words}` }));
    return make("li", { className: node.fate }, label, ...(node.below.length ? [make("ul", {}, ...node.below.map(item))] : []));
  };
  const root = make("li", { className: "root" }, make("span", { className: "node", title: "the latest token before this pass" }, make("bdi", { textContent: token(pass.root) })), make("ul", {}, ...nested(pass).map(item)));
  place.replaceChildren(make("ul", { className: "tree" }, root));
}

const SVG = "http://www.w3.org/2000/svg";
const [WIDE, HIGH, BETWEEN, MOST] = [150, 34, 24, 16]; // a node's place, the way to its children, and its most characters

function shape(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// The same tree as one picture without styles, scripts or other files, in the colours of `place`.
export function svgOf(place, model, pass) {
  const probe = place.appendChild(make("span"));
  const colour = (name) => getComputedStyle(probe).getPropertyValue(name).trim();
  const [ink, muted, card] = ["--ink", "--muted", "--card"].map(colour);
  const drawing = shape("svg", { xmlns: SVG, "font-family": "sans-serif", "font-size": 13 });
  const title = shape("title", {}, sentence(pass));
  let [rows, depth] = [0, 0];
  const draw = (node, level) => { // returns the height of its middle
    const x = 8 + level * (WIDE + BETWEEN);
    depth = Math.max(depth, level);
    const heights = node.below.map((one) => draw(one, level + 1));
    const y = heights.length ? heights[0] : 8 + HIGH * rows++ + HIGH / 2;
    probe.className = node.source || node.worker ? model.by(node).hue : "none";
    const hue = colour("--c") || muted;
    for (const to of heights) drawing.append(shape("path", { d: `M${x + WIDE} ${y}H${x + WIDE + BETWEEN / 2}V${to}H${x + WIDE + BETWEEN}`, fill: "none", stroke: muted }));
    const dashes = node.fate === "late" ? { "stroke-dasharray": "4 3" } : {};
    drawing.append(shape("rect", { x, y: y - 12, width: WIDE, height: 24, rx: 8, fill: hue, "fill-opacity": node.fate === "accepted" ? 0.22 : 0, stroke: hue, "stroke-width": node.fate === "accepted" ? 1.5 : 1, ...dashes }));
    const words = [...token(node.text)];
    const shown = words.length > MOST ? [...words.slice(0, MOST - 1), "…"] : words;
    drawing.append(shape("text", { x: x + 9, y: y + 4.5, fill: node.fate === "refused" || node.fate === "below" ? muted : ink }, `${SIGN[node.fate] ?? ""} ${shown.join("")}`.trim()));
    return y;
  };
  draw({ text: pass.root, below: nested(pass) }, 0);
  probe.remove();
  const [width, height] = [16 + (depth + 1) * WIDE + depth * BETWEEN, 16 + HIGH * rows];
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.prepend(title, shape("rect", { width, height, fill: card }));
  return new XMLSerializer().serializeToString(drawing);
}

const order = (node) => ["accepted", "target", "refused", "late", "below"].indexOf(node.fate);

export function sentence(pass) {
  const count = (fate) => pass.nodes.filter((node) => (fate === "refused" ? node.fate !== "accepted" : node.fate === fate)).length;
  const parts = [`Pass ${pass.number + 1}`];
  if (pass.nodes.length) parts.push(`${many(pass.nodes.length, "candidate")}: ${count("accepted")} accepted, ${count("refused")} refused`);
  else parts.push("no candidates, one token");
  if (pass.late.length) parts.push(`${pass.late.length} came too late`);
  parts.push(`${many(pass.tokens.length, "token")} in ${ms(pass.at - pass.from)}`);
  return parts.join(" · ");
}
