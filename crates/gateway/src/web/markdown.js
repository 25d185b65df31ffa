// Markdown of a model to elements, safely. The parser knows no raw HTML, what it makes passes a list of allowed
// elements and attributes, and the content security policy (with trusted types) forbids what both should miss.

import { CodeBlock, showControls } from "./code_block.js";
import { math } from "./math.js";
import { SAFE_LINK, sanitize } from "./sanitizer.js";

const { markdownit } = globalThis;

/** Parts that are nested deeper are shown as they are: the parser would leave out what is inside. */
const MAX_NESTING = 40;
/** Parts of more tokens, of which the cell of a table has three, are shown as they are. */
const MAX_TOKENS = 30_000;
// Elements whose direction is that of their text.
const DIRECTED = new Set("p h1 h2 h3 h4 h5 h6 ul ol li blockquote th td".split(" "));
// Styles that formulas need, and that load nothing.
const FORMULA_STYLES = new Set(["padding", "padding-left", "padding-right", "border", "color"]);

const parser = markdownit({ html: false, linkify: true, breaks: true, maxNesting: MAX_NESTING });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
parser.validateLink = (url) => SAFE_LINK.test(url.trim());
parser.use(math);
parser.core.ruler.push("page", annotate);

const { escapeHtml } = parser.utils;

/** The language of a block of code, as the model names it. */
export function languageOf(token) {
  return token.info.trim().split(/\s+/)[0];
}

function fence(tokens, idx) {
  const language = escapeHtml(languageOf(tokens[idx]));
  return `<pre data-language="${language}"><code>${escapeHtml(tokens[idx].content)}</code></pre>`;
}

Object.assign(parser.renderer.rules, {
  fence,
  code_block: fence,
  // A picture would be a request, so it is a link.
  image(tokens, idx) {
    const { content, attrs } = tokens[idx];
    const address = attrs.find(([name]) => name === "src")[1];
    const label = `Picture: ${content || address}`;
    const attributes = `href="${escapeHtml(address)}" target="_blank" rel="noopener noreferrer nofollow"`;
    return `<a ${attributes}>${escapeHtml(label)}</a>`;
  },
  table_open: () => '<div class="table" role="group" aria-label="Table" tabindex="0"><table>',
  table_close: () => "</table></div>",
});

/** Sets on the parser's tokens what the page wants of elements. */
function annotate(state) {
  for (const token of state.tokens) {
    if (token.nesting === 1 && DIRECTED.has(token.tag)) token.attrSet("dir", "auto");
    if (token.type.startsWith("heading_")) {
      // Each message has a heading of the level above; a model's own levels may leave some out.
      if (token.nesting === 1) token.attrSet("class", `level${token.tag[1]}`);
      token.tag = "h3";
    }
    const alignment = token.attrGet("style")?.match(/text-align:(\w+)/)?.[1];
    if (token.attrs) token.attrs = token.attrs.filter(([name]) => name !== "style");
    if (alignment) token.attrSet("class", alignment);
    if (token.type === "inline") annotateInline(token, state);
  }
}

function annotateInline(token, state) {
  let isInLink = false;
  for (const child of token.children) {
    if (child.type === "link_open") {
      child.attrSet("target", "_blank");
      child.attrSet("rel", "noopener noreferrer nofollow");
      isInLink = true;
    } else if (child.type === "link_close") {
      isInLink = false;
    } else if (child.type === "image" && isInLink) {
      child.type = "text";
      child.content = `Picture: ${child.content}`;
    }
  }
  markTask(token);
  if (token.children.some(({ level }) => level > MAX_NESTING)) {
    const text = Object.assign(new state.Token("text", "", 0), { content: token.content });
    token.children = [text];
  }
}

/** `[ ]` and `[x]` at the beginning of a list's item as boxes. */
function markTask(token) {
  const [first] = token.children;
  if (token.level < 2 || first?.type !== "text") return;
  first.content = first.content.replace(/^\[( |x|X)\] /, (_, mark) => (mark === " " ? "☐ " : "☑ "));
}

/** The parts of a text that stand beside each other at its top: their tokens, first lines and source. */
export function parse(text) {
  const env = {};
  const lines = text.split("\n");
  const blocks = [];
  let depth = 0;
  for (const token of parser.parse(text, env)) {
    if (depth === 0) {
      const [start, end] = token.map;
      blocks.push({ tokens: [], env, start, source: () => lines.slice(start, end).join("\n") });
    }
    depth += token.nesting;
    blocks.at(-1).tokens.push(token);
  }
  return blocks;
}

function html({ tokens, env, source }) {
  const isTooMuch = tokens.length > MAX_TOKENS || tokens.some(({ level }) => level >= MAX_NESTING - 1);
  if (isTooMuch) return `<p class="unformatted" dir="auto">${escapeHtml(source())}</p>`;
  return parser.renderer.render(tokens, parser.options, env);
}

/** Elements of parts of a text. */
export function render(blocks) {
  const fragment = sanitize(blocks.map(html).join(""));
  for (const code of fragment.querySelectorAll(":not(pre) > code")) showControls(code);
  for (const pre of fragment.querySelectorAll("pre")) {
    const block = new CodeBlock(pre.dataset.language ?? "");
    block.update(pre.textContent.replace(/\n$/, ""));
    pre.replaceWith(block.element);
  }
  for (const node of fragment.querySelectorAll("[data-style]")) {
    for (const declaration of node.dataset.style.split(";")) {
      const [name, value] = declaration.split(":");
      if (FORMULA_STYLES.has(name)) node.style.setProperty(name, value);
    }
    delete node.dataset.style;
  }
  return fragment;
}
