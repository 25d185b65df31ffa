// Formulas in Markdown: `$…$`, `\(…\)`, `$$…$$` and `\[…\]`, made into MathML by Temml. MathML needs neither
// inline styles nor a stylesheet of hundreds of rules, so the content security policy stays strict.

const { temml } = globalThis;

const MAX_FORMULA_CHARS = 10_000;
const OPTIONS = { throwOnError: true, trust: false, strict: false, maxSize: [20, 20], maxExpand: 500 };
const DELIMITERS = [
  { open: "$$", close: "$$", display: true },
  { open: "\\[", close: "\\]", display: true },
  { open: "\\(", close: "\\)", display: false },
  { open: "$", close: "$", display: false },
];

/** HTML of a formula; its source where it cannot be read. Styles are renamed: `markdown.js` applies the harmless ones. */
function mathml(source, displayMode, escape) {
  try {
    if (source.length > MAX_FORMULA_CHARS) throw new Error("too long");
    const html = temml.renderToString(source, { ...OPTIONS, displayMode });
    return html.replaceAll(' style="', ' data-style="');
  } catch {
    return `<code>${escape(source)}</code>`;
  }
}

/** Whether a single dollar may begin or end a formula: prices such as "$5 and $6" must not. */
function isDollarPair(text, start, end) {
  const inner = text.slice(start, end);
  return inner.trim() !== "" && !/^\s|\s$|\n/.test(inner) && !/[0-9]/.test(text[end + 1] ?? "");
}

/** The end of a formula whose content begins at `start`; -1 without one. */
function closing(text, start, close) {
  for (let end = text.indexOf(close, start); end >= 0; end = text.indexOf(close, end + 1)) {
    let n_backslashes = 0;
    while (close[0] === "$" && text[end - 1 - n_backslashes] === "\\") n_backslashes += 1;
    if (n_backslashes % 2 === 0) return end;
  }
  return -1;
}

function inlineRule(state, silent) {
  const { src: text, pos } = state;
  const kind = DELIMITERS.find(({ open }) => text.startsWith(open, pos));
  if (!kind) return false;
  const start = pos + kind.open.length;
  // Where no end was found once, none is looked for again: many openings without an end stay linear.
  state.env.unclosed ??= new Map();
  const unclosed = state.env.unclosed;
  if (unclosed.get(kind.open)?.text === text && unclosed.get(kind.open).from <= start) return false;
  const end = closing(text, start, kind.close);
  if (end < 0) {
    unclosed.set(kind.open, { text, from: start });
    return false;
  }
  if (kind.open === "$" && !isDollarPair(text, start, end)) return false;
  if (!silent) {
    const token = state.push(kind.display ? "math_display" : "math_inline", "math", 0);
    token.content = text.slice(start, end);
  }
  state.pos = end + kind.close.length;
  return true;
}

/** A formula on lines of its own. While its end has not come yet, it is a paragraph. */
function blockRule(state, startLine, endLine, silent) {
  const first = state.src.slice(state.bMarks[startLine] + state.tShift[startLine], state.eMarks[startLine]);
  const kind = DELIMITERS.find(({ open, display }) => display && first.startsWith(open));
  if (!kind || state.sCount[startLine] - state.blkIndent >= 4) return false;
  const lines = [first.slice(kind.open.length)];
  let line = startLine;
  while (!lines.at(-1).trimEnd().endsWith(kind.close)) {
    line += 1;
    if (line >= endLine || state.isEmpty(line) || line - startLine > 500) return false;
    lines.push(state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]));
  }
  const content = lines.join("\n").trimEnd().slice(0, -kind.close.length);
  if (content.includes(kind.close)) return false;
  if (silent) return true;
  state.line = line + 1;
  const token = state.push("math_block", "math", 0);
  token.block = true;
  token.content = content;
  token.map = [startLine, state.line];
  return true;
}

/** A plugin of markdown-it. */
export function math(parser) {
  const escape = parser.utils.escapeHtml;
  parser.inline.ruler.before("escape", "math", inlineRule);
  parser.block.ruler.before("fence", "math", blockRule, { alt: ["paragraph", "reference", "blockquote", "list"] });
  parser.renderer.rules.math_inline = (tokens, idx) => mathml(tokens[idx].content, false, escape);
  parser.renderer.rules.math_display = (tokens, idx) => mathml(tokens[idx].content, true, escape);
  parser.renderer.rules.math_block = (tokens, idx) => `<p class="formula">${mathml(tokens[idx].content, true, escape)}</p>`;
}
