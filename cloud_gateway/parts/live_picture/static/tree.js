// One pass of the target as a tree of candidates: root at the left, one level to the right for each position.
import { FATES } from "./model.js";
import { make, many, ms, token } from "./text.js";

const SIGN = { accepted: "✓", refused: "✕", below: "·", late: "◷", target: "◆" };

export function drawTree(place, model, pass) {
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

  const item = (node) => {
    const { name, hue } = model.by(node);
    const words = node.fate === "target" ? "chosen by the target itself" : `${FATES[node.fate]}, drafted by ${name}`;
    const label = make("span", { className: `node ${hue} ${node.fate}`, title: words + (node.chance === undefined ? "" : `, which gave it ${Math.round(100 * node.chance)} %`) },
      make("i", { textContent: SIGN[node.fate], "aria-hidden": "true" }), make("bdi", { textContent: token(node.text) }), make("span", { className: "out", textContent: `, ${words}` }));
    const below = [...(children.get(node.row) ?? [])].sort((a, b) => order(a) - order(b));
    return make("li", { className: node.fate }, label, ...(node.row && below.length ? [make("ul", {}, ...below.map(item))] : []));
  };
  const first = [...(children.get(0) ?? [])].sort((a, b) => order(a) - order(b));
  const root = make("li", { className: "root" }, make("span", { className: "node", title: "the latest token before this pass" }, make("bdi", { textContent: token(pass.root) })), make("ul", {}, ...first.map(item)));
  place.replaceChildren(make("ul", { className: "tree" }, root));
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
