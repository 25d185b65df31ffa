// A block of code with its language, a button that copies it, and colours.

import { button, copy, element } from "./dom.js";
import { sanitize } from "./sanitizer.js";

const { hljs } = globalThis;

// Characters that change the order in which text is shown, so that code reads unlike what it is.
const BIDI_CONTROL = /([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])/;
const MAX_LANGUAGE_CHARS = 30;
const MAX_COLOURED_CHARS = 60_000;
const MAX_COLOURED_GROWING_CHARS = 8_000;

export class CodeBlock {
  constructor(language) {
    this.language = language.slice(0, MAX_LANGUAGE_CHARS);
    this.text = "";
    this.element = element("div", "code");
    const bar = element("div", "bar");
    const copyButton = button("Copy", () => copy(this.text, copyButton), "quiet copy-code");
    bar.append(element("span", "", this.language || "code"), copyButton);
    this.code = element("code");
    const pre = element("pre");
    pre.tabIndex = 0;
    pre.dir = "ltr";
    pre.append(this.code);
    this.element.append(bar, pre);
  }

  /** Shows a text in place of the one before; one that still grows has no colours when it is long. */
  update(text, isComplete = true) {
    if (text === this.text && isComplete === this.isComplete) return;
    this.isComplete = isComplete;
    const colours = coloured(text, this.language, isComplete);
    const { firstChild, childNodes } = this.code;
    if (colours) this.code.replaceChildren(colours);
    else if (childNodes.length === 1 && firstChild instanceof Text && text.startsWith(this.text)) {
      firstChild.appendData(text.slice(this.text.length));
    } else this.code.replaceChildren(text);
    this.text = text;
    showControls(this.code);
  }
}

/** Code with colours; null where its language is unknown or it is too long. */
function coloured(code, language, isComplete) {
  const limit = isComplete ? MAX_COLOURED_CHARS : MAX_COLOURED_GROWING_CHARS;
  if (!hljs.getLanguage(language) || code.length > limit) return null;
  return sanitize(hljs.highlight(code, { language, ignoreIllegals: true }).value);
}

/** Shows by name the characters of code that change the order of text. */
export function showControls(code) {
  if (!BIDI_CONTROL.test(code.textContent)) return;
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) if (BIDI_CONTROL.test(walker.currentNode.data)) found.push(walker.currentNode);
  for (const node of found) {
    node.replaceWith(...node.data.split(BIDI_CONTROL).map((part, i) => (i % 2 ? shownControl(part) : part)));
  }
}

function shownControl(character) {
  const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  const mark = element("span", "control", `U+${code}`);
  mark.title = "This character changes the order in which text is shown.";
  return mark;
}

/** JSON as it is easiest to read; other texts as they are. */
export function indentedJson(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
