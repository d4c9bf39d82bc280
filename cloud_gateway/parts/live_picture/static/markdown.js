// Markdown of a completion as elements: paragraphs, headings, lists, quotations, code, emphasis and links to http(s).
// Everything is made by `make` with text nodes, so that HTML in a completion stays text. Anything else stays as written.
import { make, safe } from "./text.js";

// No two alternatives begin alike and none repeats over its own first character, so the time is linear.
const INLINE = /(`{1,3})([^`]+)\1|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^[\]\n]*)\]\(([^()\s]+)\)/g;
const FENCE = /^ {0,3}```/;
const HEADING = /^#{1,6} +(.*)$/;
const BULLET = /^ *[-*+] +(.*)$/;
const NUMBER = /^ *\d{1,9}[.)] +(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;

export function markdown(text) {
  const lines = text.split("\n");
  const blocks = [];
  const run = (pattern) => { // the lines from here on that match, as inlines
    const found = [];
    for (; lines.length && pattern.test(lines[0]); lines.shift()) found.push(inlines(pattern.exec(lines[0])[1]));
    return found;
  };
  while (lines.length) {
    const line = lines[0];
    if (FENCE.test(line)) {
      lines.shift();
      const end = lines.findIndex((one) => FENCE.test(one));
      const code = lines.splice(0, end < 0 ? lines.length : end);
      lines.shift();
      blocks.push(make("pre", {}, make("code", { textContent: safe(code.join("\n")) })));
    } else if (HEADING.test(line)) blocks.push(make("h3", {}, ...inlines(HEADING.exec(lines.shift())[1])));
    else if (BULLET.test(line)) blocks.push(make("ul", {}, ...run(BULLET).map((item) => make("li", {}, ...item))));
    else if (NUMBER.test(line)) blocks.push(make("ol", {}, ...run(NUMBER).map((item) => make("li", {}, ...item))));
    else if (QUOTE.test(line)) blocks.push(make("blockquote", {}, ...run(QUOTE).map((item) => make("p", {}, ...item))));
    else if (!line.trim()) lines.shift();
    else {
      const end = lines.findIndex((one, at) => at && (!one.trim() || [FENCE, HEADING, BULLET, NUMBER, QUOTE].some((other) => other.test(one))));
      blocks.push(make("p", {}, ...inlines(lines.splice(0, end < 0 ? lines.length : end).join("\n"))));
    }
  }
  return blocks;
}

function inlines(text) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, , code, strong, emphasis, label, target] = match;
    found.push(safe(text.slice(at, match.index)));
    at = match.index + whole.length;
    if (code !== undefined) found.push(make("code", { textContent: safe(code) }));
    else if (strong !== undefined) found.push(make("strong", { textContent: safe(strong) }));
    else if (emphasis !== undefined) found.push(make("em", { textContent: safe(emphasis) }));
    else if (/^https?:\/\//i.test(target)) found.push(make("a", { href: target, rel: "noopener noreferrer", target: "_blank", textContent: safe(label) }));
    else found.push(safe(whole));
  }
  return [...found, safe(text.slice(at))].filter(Boolean);
}
