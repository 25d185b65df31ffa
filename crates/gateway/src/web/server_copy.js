// A copy of the conversations on the server: each is a file of the API key's project, named after the conversation
// and its last change, so that the list of files says what is new. Nothing is lost when two browsers change one
// conversation: their messages are put together. A deletion leaves a mark, a file named after the last change that it
// covers, from which other browsers learn of it. The class has the methods of `BrowserStorage` that the page calls,
// and keeps the conversations in one.

import { MAX_MESSAGES } from "./conversation.js";
import { preferences } from "./preferences.js";
import { deleteFile, listFiles, readFile, writeFile } from "./server.js";
import { MAX_CONVERSATIONS } from "./storage.js";
import { readCopy } from "./transfer.js";

const NAME = /^throng-conversation-([0-9a-f]{32})-(deleted-)?([0-9]{1,15})\.json$/;
const MAX_BYTES = 32 * 1024 * 1024;
const WAIT_MS = 2_000;
const BETWEEN_MS = 30_000;
const MARK_LIFETIME_S = 30 * 24 * 60 * 60;

const nameOf = (id, change) => `throng-conversation-${id}-${change}.json`;
const changeOf = (head) => Math.max(head.changed ?? 0, head.updated);

/** Files of one conversation on the server: its copies, one unless browsers wrote at the same time, and its marks. */
class Copies {
  constructor() {
    this.files = [];
    this.marks = [];
  }

  /** The last change that a deletion covers. */
  get deleted() {
    return Math.max(-1, ...this.marks.map(({ change }) => change));
  }

  /** The copies that no deletion covers. */
  get alive() {
    return this.files.filter(({ change }) => change > this.deleted);
  }

  /** The last change of a copy that no deletion covers; -1 without one. */
  get latest() {
    return Math.max(-1, ...this.alive.map(({ change }) => change));
  }
}

/** Deletions that the server does not know yet: the last change of each deleted conversation, by its id. */
const deletions = {
  all: () => preferences.get("deleted"),
  add(heads) {
    const changes = heads.map((head) => [head.id, changeOf(head)]);
    const all = [...Object.entries(deletions.all()), ...changes].slice(-2 * MAX_CONVERSATIONS);
    preferences.set("deleted", Object.fromEntries(all));
  },
  /** Removes a deletion, but no later one of the same conversation. */
  remove(id, change) {
    const { [id]: last, ...others } = deletions.all();
    if (last === change) preferences.set("deleted", others);
  },
};

export class CopiedStorage {
  /** `onState` gets a sentence about the copy, and whether it is a fault. */
  constructor(storage, { key, onState }) {
    this.storage = storage;
    this.key = key;
    this.onState = onState;
    this.waiting = new Set();
    this.timer = 0;
    this.last = 0;
    this.work = Promise.resolve();
    this.onTold = () => {};
  }

  onChange(callback) {
    this.onTold = callback;
    this.storage.onChange(callback);
  }

  conversations() { return this.storage.conversations(); }

  messages(id) { return this.storage.messages(id); }

  async save(head, messages) {
    await this.storage.change(head.id, (kept) => {
      // A page does not know what was read from the server since it opened the conversation.
      const changed = Math.max(Date.now(), changeOf(kept ?? head) + 1);
      return { head: { ...head, changed, copied: kept?.copied }, messages };
    });
    this.#later(head.id);
  }

  async remove(id) {
    const head = await this.storage.head(id);
    if (head) deletions.add([head]);
    this.waiting.delete(id);
    await this.storage.remove(id);
    this.#inTurn(() => this.#listed());
  }

  async clear() {
    deletions.add(await this.storage.conversations());
    this.waiting.clear();
    await this.storage.clear();
    this.#inTurn(async () => {
      for (const [id, copies] of await this.#listed()) {
        if (copies.alive.length) await this.#markDeleted(id, copies.latest, copies);
      }
    });
  }

  /** Brings both sides to the same conversations; not more often than every half a minute unless it must be `now`. */
  synchronize(now = false) {
    if (!now && Date.now() - this.last < BETWEEN_MS) return this.work;
    this.last = Date.now();
    return this.#inTurn(async () => {
      const listed = await this.#listed();
      const local = new Map((await this.storage.conversations()).map((head) => [head.id, changeOf(head)]));
      const change = (id) => Math.max(local.get(id) ?? 0, listed.get(id)?.latest ?? 0);
      const ids = [...new Set([...local.keys(), ...listed.keys()])].sort((a, b) => change(b) - change(a));
      try { await this.#bringAllTogether(ids.slice(0, MAX_CONVERSATIONS), listed); } finally { this.onTold(); }
    });
  }

  /** Copies what was saved, once no more has come for a while. */
  #later(id) {
    this.waiting.add(id);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.flush(), WAIT_MS);
  }

  /** Copies all that waits. What cannot be copied waits on. */
  flush() {
    clearTimeout(this.timer);
    if (!this.waiting.size) return this.work;
    return this.#inTurn(async () => {
      const ids = [...this.waiting];
      this.waiting.clear();
      try { await this.#bringAllTogether(ids, await this.#listed()); } catch (error) {
        for (const id of ids) this.waiting.add(id);
        throw error;
      }
    });
  }

  /** One thing at a time: a list of files is right until the next change. */
  #inTurn(act) {
    this.work = this.work.then(act).catch((error) => this.onState(`Not on the server: ${error.message}`, true));
    return this.work;
  }

  /** The files of each conversation, once the server has marks of all deletions. */
  async #listed() {
    const found = await this.#list();
    const waiting = Object.entries(deletions.all());
    for (const [id, change] of waiting) {
      await this.#markDeleted(id, change, found.get(id) ?? new Copies());
      deletions.remove(id, change);
    }
    return waiting.length ? this.#list() : found;
  }

  async #list() {
    const found = new Map();
    for await (const file of listFiles(this.key())) {
      const [, id, mark, change] = NAME.exec(file.filename) ?? [];
      if (!id) continue;
      if (!found.has(id)) found.set(id, new Copies());
      found.get(id)[mark ? "marks" : "files"].push({ file, change: Number(change) });
    }
    return found;
  }

  /** Brings conversations together; one that fails does not keep the others from it. */
  async #bringAllTogether(ids, listed) {
    const faults = [];
    for (const id of ids) {
      try { await this.#bringTogether(id, listed.get(id) ?? new Copies()); } catch (error) {
        // The server cannot be reached.
        if (error instanceof TypeError) throw error;
        faults.push(error);
      }
    }
    if (faults.length) throw faults[0];
    this.onState(`Conversations on the server: ${(await this.storage.conversations()).length}`, false);
  }

  async #bringTogether(id, copies) {
    let head = await this.storage.head(id);
    if (head && changeOf(head) <= copies.deleted) {
      await this.storage.remove(id);
      head = undefined;
    }
    // Another browser may have written one when it did not know of the deletion.
    await this.#deleteCovered(copies, copies.deleted);
    const unread = copies.alive.filter(({ change }) => change !== head?.copied);
    const isChanged = unread.length
      ? await this.#merge(id, head, unread, copies)
      : head && (!copies.alive.length || changeOf(head) > head.copied);
    if (isChanged) await this.#write(id, copies);
  }

  /** Puts the messages of copies and of this browser together. Says whether the result is in none of the copies. */
  async #merge(id, head, unread, copies) {
    const sides = await Promise.all(unread.map((copy) => this.#read(id, copy)));
    const own = head ? await this.storage.messages(id) : [];
    const mine = new Set(own);
    const latest = copies.latest;
    let isNew = copies.alive.length > 1;
    await this.storage.change(id, (kept) => {
      // It was deleted meanwhile.
      if (head && !kept) {
        isNew = false;
        return null;
      }
      if (kept) sides.push({ head: kept, messages: own, change: changeOf(kept) });
      // A message that two sides have is that of the side that was changed last.
      const messages = new Map();
      for (const side of sides.sort((a, b) => a.change - b.change)) {
        for (const message of side.messages) messages.set(message.id, message);
      }
      const newest = sides.at(-1);
      isNew ||= newest.change > latest || newest.messages.length < messages.size;
      const changed = isNew ? Math.max(Date.now(), newest.change + 1) : newest.change;
      // The page may have changed its own ones since they were read.
      const others = [...messages.values()].filter((message) => !mine.has(message));
      return { head: { ...newest.head, changed, copied: latest }, messages: others };
    });
    return isNew;
  }

  async #read(id, { file, change }) {
    if (file.bytes > MAX_BYTES) throw new Error("a conversation there is larger than 32 MB.");
    const { head, messages } = readCopy(await readFile(this.key(), file.id));
    if (head.id !== id) throw new Error("a file there has another conversation than its name says.");
    return { head, messages, change };
  }

  /** Writes a conversation in place of its files, all of which this browser has read. */
  async #write(id, copies) {
    const head = await this.storage.head(id);
    if (!head) return;
    const change = changeOf(head);
    const messages = await this.storage.messages(id);
    const text = JSON.stringify({ ...head, copied: undefined, messages });
    if (messages.length > MAX_MESSAGES) throw new Error(`“${head.title}” has more than ${MAX_MESSAGES} messages.`);
    if (new Blob([text]).size > MAX_BYTES) throw new Error(`“${head.title}” is larger than 32 MB.`);
    await writeFile(this.key(), nameOf(id, change), text);
    // A change that the page makes meanwhile is a later one, which is copied later.
    await this.storage.change(id, (kept) => {
      return kept && { head: { ...kept, changed: Math.max(changeOf(kept), change), copied: change }, messages: [] };
    });
    for (const { file } of [...copies.files, ...copies.marks]) await deleteFile(this.key(), file.id);
  }

  /** Deletes the files that a deletion covers, and marks the conversation as deleted. */
  async #markDeleted(id, change, copies) {
    // First, so that there is room for the mark.
    await this.#deleteCovered(copies, change);
    if (copies.deleted < change) await writeFile(this.key(), nameOf(id, `deleted-${change}`), "{}", MARK_LIFETIME_S);
  }

  /** Deletes the copies up to a change, and the marks of earlier deletions. */
  async #deleteCovered(copies, change) {
    for (const copy of copies.files) if (copy.change <= change) await deleteFile(this.key(), copy.file.id);
    for (const mark of copies.marks) if (mark.change < change) await deleteFile(this.key(), mark.file.id);
  }
}
