// The list of conversations, and the search in it.

import { $, element, signButton } from "./dom.js";
import { search } from "./search.js";

const DAY_MS = 24 * 3600 * 1000;
const SEARCH_DELAY_MS = 150;

function groupOf(time, today) {
  if (time >= today) return "Today";
  if (time >= today - DAY_MS) return "Yesterday";
  return time >= today - 7 * DAY_MS ? "Last seven days" : "Earlier";
}

export class Sidebar {
  /** `actions`: `open(id, message)`, `rename(head, title)`, `remove(head)`, `exported(head)`, `isBusy(id)`. */
  constructor(storage, actions) {
    this.storage = storage;
    this.actions = actions;
    this.current = null;
    $("search").addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.refresh(), SEARCH_DELAY_MS);
    });
    $("search").addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") $("conversations").querySelector(".open")?.focus();
    });
    $("conversations").addEventListener("keydown", (event) => this.#moveFocus(event));
  }

  /** Shows the list, or what the search finds. The latest call wins. */
  async refresh() {
    this.search?.abort();
    this.search = new AbortController();
    const { signal } = this.search;
    const text = $("search").value.trim();
    const heads = text ? null : await this.storage.conversations();
    const found = text ? await search(this.storage, text, signal) : heads.map((head) => ({ head }));
    if (signal.aborted) return;
    this.#show(found, text);
  }

  #show(found, text) {
    const today = new Date().setHours(0, 0, 0, 0);
    const groups = new Map();
    for (const entry of found) {
      const name = text ? `Found: ${found.length}` : groupOf(entry.head.updated, today);
      groups.set(name, [...(groups.get(name) ?? []), entry]);
    }
    // A list that is the same stays, with its focus and whatever is being renamed.
    const shown = ({ head, snippet }) => [head.id, head.title, snippet, this.actions.isBusy(head.id)];
    const state = JSON.stringify([this.current, [...groups].map(([name, entries]) => [name, entries.map(shown)])]);
    if (state === this.state || $("conversations").querySelector("input")) return;
    this.state = state;
    const focused = document.activeElement?.closest("#conversations li")?.dataset.id;
    const nodes = [...groups].flatMap(([name, entries]) => {
      const list = element("ul");
      list.setAttribute("aria-label", name);
      list.append(...entries.map((entry) => this.#item(entry)));
      return [element("p", "group", name), list];
    });
    if (!found.length) nodes.push(element("p", "hint", text ? "Nothing found." : "No conversations yet."));
    $("conversations").replaceChildren(...nodes);
    if (focused) $("conversations").querySelector(`[data-id="${focused}"] .open`)?.focus();
  }

  #item({ head, message, snippet }) {
    const item = element("li", head.id === this.current ? "current" : "");
    item.dataset.id = head.id;
    const open = element("button", "open");
    open.type = "button";
    const title = element("span", "title", head.title);
    title.dir = "auto";
    open.append(title);
    if (snippet) {
      const line = element("span", "snippet", snippet);
      line.dir = "auto";
      open.append(line);
    }
    if (head.id === this.current) open.setAttribute("aria-current", "true");
    if (this.actions.isBusy(head.id)) open.append(element("span", "visually-hidden", " (answering)"));
    item.classList.toggle("busy", this.actions.isBusy(head.id));
    open.addEventListener("click", () => this.actions.open(head.id, message));
    const tools = element("span", "tools");
    tools.append(
      signButton("✎", `Rename: ${head.title}`, () => this.#rename(item, head)),
      signButton("⤓", `Export: ${head.title}`, () => this.actions.exported(head)),
      signButton("✕", `Delete: ${head.title}`, (event) => this.#remove(event.currentTarget, head)),
    );
    item.append(open, tools);
    return item;
  }

  #rename(item, head) {
    const box = element("input");
    box.value = head.title;
    box.setAttribute("aria-label", "Title");
    let isDone = false;
    const end = async (isKept) => {
      if (isDone) return;
      isDone = true;
      const title = box.value.trim();
      box.remove();
      this.state = null;
      if (isKept && title) await this.actions.rename(head, title);
      await this.refresh();
    };
    box.addEventListener("blur", () => end(true));
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.stopPropagation();
      end(event.key === "Enter");
    });
    item.replaceChildren(box);
    box.select();
  }

  /** Deletes at the second press. */
  #remove(node, head) {
    if (node.dataset.sure) {
      this.actions.remove(head);
      return;
    }
    node.dataset.sure = "true";
    node.textContent = "Delete?";
    node.addEventListener("blur", () => { delete node.dataset.sure; node.textContent = "✕"; }, { once: true });
  }

  #moveFocus(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.classList.contains("open")) return;
    const all = [...$("conversations").querySelectorAll(".open")];
    const next = all[all.indexOf(event.target) + step];
    (next ?? (step < 0 ? $("search") : event.target)).focus();
    event.preventDefault();
  }
}
