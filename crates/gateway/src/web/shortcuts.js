// Keys that work anywhere on the page, and the list of them.

import { $, element } from "./dom.js";

/** `mod` is Ctrl, or ⌘ on a Mac. Letters that browsers keep for themselves are left to them. */
export const SHORTCUTS = [
  { keys: "mod K", code: "KeyK", name: "search", label: "Search conversations" },
  { keys: "mod Shift O", code: "KeyO", shift: true, name: "newChat", label: "New chat" },
  { keys: "mod B", code: "KeyB", name: "toggleSidebar", label: "Show or hide the conversations" },
  { keys: "mod Shift E", code: "KeyE", shift: true, name: "editLast", label: "Edit your last message" },
  { keys: "mod Shift G", code: "KeyG", shift: true, name: "regenerate", label: "Another answer" },
  { keys: "mod ,", code: "Comma", name: "settings", label: "Settings" },
  { keys: "mod /", code: "Slash", name: "shortcuts", label: "This list" },
];
const OTHERS = [
  ["Enter", "Send"],
  ["Shift Enter", "New line"],
  ["Esc", "Stop the answer"],
  ["↑", "Edit your last message, in an empty box"],
  ["← →", "From token to token, while tokens are shown"],
];

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

/** Calls `commands[name]` for each shortcut. */
export function listen(commands) {
  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.altKey || !(isMac ? event.metaKey : event.ctrlKey)) return;
    const found = SHORTCUTS.find(({ code, shift }) => code === event.code && Boolean(shift) === event.shiftKey);
    if (!found || (document.querySelector("dialog[open]") && found.name !== "shortcuts")) return;
    event.preventDefault();
    commands[found.name]();
  });
}

/** Fills the list of the dialog. */
export function describeShortcuts() {
  const rows = [...SHORTCUTS.map(({ keys, label }) => [keys, label]), ...OTHERS].map(([keys, label]) => {
    const row = element("div");
    const term = element("dt");
    for (const key of keys.split(" ")) {
      term.append(element("kbd", "", key === "mod" ? (isMac ? "⌘" : "Ctrl") : key), " ");
    }
    row.append(term, element("dd", "", label));
    return row;
  });
  $("shortcut-list").replaceChildren(...rows);
}
