// Parts of the page: elements, buttons that copy, and text with code in it. Text of the model is only ever set as text.
"use strict";

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function button(label, onClick) {
  const node = element("button", "quiet", label);
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}

/** Copies without the clipboard API, which browsers give only to pages from HTTPS or this machine. */
function copyBySelection(text) {
  const area = element("textarea", "visually-hidden", text);
  area.readOnly = true;
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus({ preventScroll: true });
  return copied;
}

async function copy(text, node) {
  let copied = false;
  try {
    await navigator.clipboard.writeText(text);
    copied = true;
  } catch { copied = copyBySelection(text); }
  const before = node.dataset.label ??= node.textContent;
  node.textContent = copied ? "Copied" : "Not copied";
  setTimeout(() => { node.textContent = before; }, 1200);
}

function codeBlock(language, code) {
  const block = element("div", "code");
  const bar = element("div");
  const copyButton = button("Copy", () => copy(code, copyButton));
  bar.append(element("span", "", language || "code"), copyButton);
  const pre = element("pre");
  pre.append(element("code", "", code));
  block.append(bar, pre);
  return block;
}

function inline(text, target) {
  for (const part of text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    if (part.length > 2 && part.startsWith("`")) target.append(element("code", "", part.slice(1, -1)));
    else if (part.length > 4 && part.startsWith("**")) target.append(element("strong", "", part.slice(2, -2)));
    else if (part) target.append(part);
  }
}

function render(text, target) {
  const nodes = [];
  text.split(/^[ \t]*```/m).forEach((piece, i) => {
    if (i % 2) {
      const [first, ...rest] = piece.split("\n");
      nodes.push(codeBlock(first.trim(), rest.join("\n").replace(/\n$/, "")));
      return;
    }
    for (const paragraph of piece.split(/\n{2,}/)) {
      const trimmed = paragraph.replace(/^\n+|\s+$/g, "");
      if (!trimmed) continue;
      const p = element("p");
      inline(trimmed, p);
      nodes.push(p);
    }
  });
  target.replaceChildren(...nodes);
}
