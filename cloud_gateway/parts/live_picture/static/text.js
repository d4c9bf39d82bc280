// Text of models, machines and traces is never markup: it is shown by textContent, and what would not be seen, or would
// move other text (control characters, bidirectional overrides), is shown by its name.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;
const named = (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

export const safe = (text) => String(text).replace(HIDDEN, named);
export const token = (text) => (text === "" ? "·" : safe(text).replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣"));
export const ms = (s) => (s < 0.01 ? `${(s * 1000).toFixed(1)} ms` : s < 1 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(2)} s`);
export const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
export const many = (n, one, more = one + "s") => `${n} ${n === 1 ? one : more}`;

// An element with properties, text or children: make("p", {className: "note"}, "text", child)
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role" || key === "scope") element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}
export const $ = (id) => document.getElementById(id);
