// Conversations that end with the page: for browsers that keep nothing, and for who wants nothing kept. It has the
// methods of `BrowserStorage` that the page calls.

import { MAX_CONVERSATIONS } from "./storage.js";

export class MemoryStorage {
  constructor() {
    this.heads = new Map();
    this.texts = new Map();
  }

  onChange() {}

  async conversations() {
    return [...this.heads.values()].sort((a, b) => b.updated - a.updated);
  }

  async messages(id) {
    return [...(this.texts.get(id)?.values() ?? [])];
  }

  async save(head, messages) {
    this.heads.set(head.id, structuredClone(head));
    const kept = this.texts.get(head.id) ?? new Map();
    for (const message of messages) kept.set(message.id, structuredClone(message));
    this.texts.set(head.id, kept);
    for (const { id } of (await this.conversations()).slice(MAX_CONVERSATIONS)) await this.remove(id);
  }

  async remove(id) {
    this.heads.delete(id);
    this.texts.delete(id);
  }

  async clear() {
    this.heads.clear();
    this.texts.clear();
  }
}
