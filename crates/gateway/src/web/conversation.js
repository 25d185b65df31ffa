// A conversation: messages in a tree, of which one path is shown. An edited message and another answer are siblings of
// what they replace, so nothing is lost.

export const MAX_MESSAGES = 2_000;
const MAX_TITLE_CHARS = 80;
const CONTROLS = /[\p{Cc}\p{Cf}]+/gu;

/** A text of one line without characters that change how it is shown. */
export function titleOf(text) {
  const line = text.replace(/\s+/g, " ").replace(CONTROLS, "").trim();
  return [...line.slice(0, 2 * MAX_TITLE_CHARS)].slice(0, MAX_TITLE_CHARS).join("") || "Untitled";
}

export class Conversation {
  /** `record` is what the list shows of it; `messages` come with parents before their children. */
  constructor(record, messages = []) {
    this.record = record;
    this.messages = new Map();
    this.children = new Map();
    this.latest = 0;
    for (const message of messages) this.#index(message);
  }

  static create(settings) {
    const now = Date.now();
    return new Conversation({ id: newId(), title: "", created: now, updated: now, leaf: null, ...settings });
  }

  #index(message) {
    this.messages.set(message.id, message);
    const siblings = this.children.get(message.parent) ?? [];
    siblings.push(message);
    this.latest = Math.max(this.latest, message.created);
    this.children.set(message.parent, siblings);
  }

  get isFull() {
    return this.messages.size >= MAX_MESSAGES;
  }

  /** Adds a message below another (`null`: at the top) and shows the path to it. */
  add(parent, role, fields) {
    // No two are of the same time: it is their order.
    const created = Math.max(Date.now(), this.latest + 1);
    const place = { id: newId(), conversation: this.record.id, parent: parent?.id ?? null };
    const message = { ...place, role, content: "", created, ...fields };
    this.#index(message);
    this.record.leaf = message.id;
    this.record.updated = message.created;
    if (!this.record.title && role === "user") this.record.title = titleOf(message.content);
    return message;
  }

  parentOf(message) {
    return this.messages.get(message.parent) ?? null;
  }

  /** The messages from the top to this one. */
  pathTo(message) {
    const path = [];
    for (let at = message; at; at = this.parentOf(at)) path.push(at);
    return path.reverse();
  }

  /** The messages that are shown. */
  get path() {
    return this.pathTo(this.messages.get(this.record.leaf));
  }

  /** A message and what it was put in place of, oldest first. */
  versions(message) {
    return this.children.get(message.parent);
  }

  /** Shows the path through this message to its newest descendant. */
  select(message) {
    let leaf = message;
    for (let below = [leaf]; below; below = this.children.get(leaf.id)) leaf = below.at(-1);
    this.record.leaf = leaf.id;
  }
}

/** An id that is made only once. Browsers give `randomUUID` only to pages from HTTPS or this machine. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The messages of a request: what the model is to see of a path. Questions that got no answer are left out. */
export function requestMessages(system, path) {
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  path.forEach((message, i) => {
    const isLast = i === path.length - 1;
    const next = path[i + 1];
    if (message.role === "assistant" && !isAnswered(message)) return;
    if (message.role === "user" && !isLast && !(next.role === "assistant" && isAnswered(next))) return;
    messages.push(requestMessage(message));
  });
  return messages;
}

function isAnswered(message) {
  return Boolean(message.content || message.calls?.length) && !message.error;
}

function requestMessage({ role, content, images, calls, call }) {
  if (role === "tool") return { role, content, tool_call_id: call };
  if (images?.length) {
    const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
    return { role, content: [...parts, { type: "text", text: content }] };
  }
  if (!calls?.length) return { role, content };
  const functionCall = ({ id, name, arguments: text }) => {
    return { id, type: "function", function: { name, arguments: text } };
  };
  return { role, content: content || null, tool_calls: calls.map(functionCall) };
}
