// A Markdown text that grows. What stands before its last part is rendered once: the cost of one more token does not
// depend on the length of the answer.

import { CodeBlock } from "./code_block.js";
import { element } from "./dom.js";
import { languageOf, parse, render } from "./markdown.js";

/** Beyond so many characters the rest of a text is shown as it is. */
const MAX_MARKDOWN_CHARS = 200_000;
/** So much of the last part is rendered while it grows; the rest is shown as it is until it is whole. */
const MAX_GROWING_CHARS = 8_000;
/** A part is settled when so many whole lines follow its end: a table is one only from its second line on. */
const N_LINES_TO_SETTLE = 2;

export class MarkdownView {
  constructor(target) {
    this.target = target;
    this.#reset();
  }

  #reset() {
    this.text = "";
    this.n_settled = 0;
    this.growing = [];
    this.fence = null;
    this.overflow = "";
    this.rest = null;
    this.target.replaceChildren();
  }

  /** Shows a text; one that continues the text before costs only its last part. */
  update(source, isComplete) {
    if (isComplete && this.isComplete && source === this.source) return;
    this.source = source;
    this.isComplete = isComplete;
    const text = source.includes("\r") ? source.replace(/\r\n?/g, "\n") : source;
    const formatted = text.slice(0, MAX_MARKDOWN_CHARS);
    // Definitions of links may stand behind their uses.
    const isRedone = isComplete && this.n_settled > 0 && /^ {0,3}\[[^\]\n]+\]:/m.test(formatted);
    if (isRedone || !formatted.startsWith(this.text)) this.#reset();
    if (formatted !== this.text || isComplete) this.#grow(formatted, isComplete);
    this.text = formatted;
    this.#showRest(this.overflow + text.slice(formatted.length));
  }

  #grow(text, isComplete) {
    const blocks = this.#settle(text, parse(text.slice(this.n_settled)));
    if (!isComplete && this.#growFence(blocks)) return;
    this.fence = null;
    const tail = text.slice(this.n_settled);
    const isLong = !isComplete && tail.length > MAX_GROWING_CHARS;
    if (!isLong) this.#replaceGrowing(render(blocks));
    else if (!this.overflow) this.#replaceGrowing(render(parse(tail.slice(0, MAX_GROWING_CHARS))));
    this.overflow = isLong ? tail.slice(MAX_GROWING_CHARS) : "";
  }

  /** Renders for good the parts that no further text changes; returns the others. */
  #settle(text, blocks) {
    const lines = lineStarts(text, this.n_settled);
    let n = 0;
    while (blocks[n + 1]?.start + N_LINES_TO_SETTLE < lines.length) n += 1;
    if (n === 0) return blocks;
    this.#replaceGrowing(render(blocks.slice(0, n)));
    this.growing = [];
    this.fence = null;
    this.overflow = "";
    this.n_settled = lines[blocks[n].start];
    return blocks.slice(n);
  }

  /** Lets an open block of code grow in place, so that its button stays and its text is not made anew. */
  #growFence(blocks) {
    const token = blocks[0]?.tokens[0];
    if (blocks.length !== 1 || token.type !== "fence") return false;
    if (this.fence?.info !== token.info) {
      this.fence = { info: token.info, block: new CodeBlock(languageOf(token)) };
      this.#replaceGrowing(this.fence.block.element);
    }
    this.fence.block.update(token.content.replace(/\n$/, ""), false);
    this.overflow = "";
    return true;
  }

  #replaceGrowing(nodes) {
    this.#showRest("");
    for (const node of this.growing) node.remove();
    this.growing = nodes instanceof DocumentFragment ? [...nodes.childNodes] : [nodes];
    this.target.append(nodes);
  }

  #showRest(text) {
    if (!text) {
      this.rest?.remove();
      this.rest = null;
      return;
    }
    this.rest ??= this.target.appendChild(element("p", "unformatted"));
    this.rest.textContent = text;
  }
}

/** Where the lines from `start` on begin; the last one may not be whole yet. */
function lineStarts(text, start) {
  const starts = [start];
  for (let at = text.indexOf("\n", start); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return starts;
}
