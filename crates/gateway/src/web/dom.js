// Elements of the page, and copying to the clipboard. Text is only ever set as text.

export const $ = (id) => document.getElementById(id);

export function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function button(label, onClick, className = "quiet") {
  const node = element("button", className, label);
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}

/** A button whose visible text is a sign; `label` is its name for screen readers and on hover. */
export function signButton(sign, label, onClick, className = "quiet") {
  const node = button(sign, onClick, className);
  node.setAttribute("aria-label", label);
  node.title = label;
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

/** Copies a text and says so on the button for a moment. */
export async function copy(text, node) {
  let copied = false;
  try {
    await navigator.clipboard.writeText(text);
    copied = true;
  } catch { copied = copyBySelection(text); }
  const before = node.dataset.label ??= node.textContent;
  node.textContent = copied ? "Copied" : "Not copied";
  setTimeout(() => { node.textContent = before; }, 1200);
}

/** Offers a text as a file to keep. */
export function download(name, text, mediaType) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type: mediaType }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Says a sentence to screen readers. */
export function announce(text) {
  $("announcement").textContent = text;
}
