// A copy of the conversations on the server: each is a file of the API key's project, named after the conversation
// and its last change, so that the list of files says what is new. Nothing is lost when two browsers change one
// conversation: their messages are put together. A deletion leaves a mark, a file of no content, from which other
// browsers learn of it. The class has the methods of `BrowserStorage` and keeps the conversations in one.

import { deleteFile, listFiles, readFile, writeFile } from "./server.js";
import { MAX_CONVERSATIONS } from "./storage.js";
import { readCopy } from "./transfer.js";

const NAME = /^throng-conversation-([0-9a-f]{32})-(deleted|[0-9]{1,15})\.json$/;
const MAX_BYTES = 32 * 1024 * 1024;
const WAIT_MS = 2_000;
const BETWEEN_MS = 30_000;
const MARK_LIFETIME_S = 30 * 24 * 60 * 60;

const nameOf = (id, change) => `throng-conversation-${id}-${change}.json`;
const changeOf = (head) => head.changed ?? head.updated;

/** Files of one conversation on the server: that of its last change, older ones, and the mark of its deletion. */
class Copies {
  constructor() {
    this.files = [];
    this.mark = null;
  }

  add(file, change) {
    if (change === "deleted") this.mark = file;
    else this.files.push({ file, change: Number(change) });
  }

  get latest() {
    return this.files.reduce((best, copy) => (best && best.change >= copy.change ? best : copy), null);
  }
}

export class CopiedStorage {
  /** `onState` gets a sentence about the copy, and whether it is a fault. */
  constructor(storage, { key, onState }) {
    this.storage = storage;
    this.key = key;
    this.onState = onState;
    this.waiting = new Set();
    // The last change of each conversation that this browser has read from the server or written there.
    this.copied = new Map();
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
    head.changed = Math.max(Date.now(), (head.changed ?? 0) + 1);
    head.copied = this.copied.get(head.id) ?? head.copied;
    await this.storage.save(head, messages);
    this.#later(head.id);
  }

  async remove(id) {
    this.waiting.delete(id);
    await this.storage.remove(id);
    this.#inTurn(async () => this.#markDeleted(id, (await this.#listed()).get(id)));
  }

  async clear() {
    this.waiting.clear();
    await this.storage.clear();
    this.#inTurn(async () => {
      for (const [id, copies] of await this.#listed()) if (copies.latest) await this.#markDeleted(id, copies);
    });
  }

  /** Brings both sides to the same conversations; not more often than every half a minute unless it must be `now`. */
  synchronize(now = false) {
    if (!now && Date.now() - this.last < BETWEEN_MS) return this.work;
    this.last = Date.now();
    return this.#inTurn(async () => {
      const [listed, heads] = [await this.#listed(), await this.storage.conversations()];
      const local = new Map(heads.map((head) => [head.id, head]));
      const change = (id) => Math.max(local.has(id) ? changeOf(local.get(id)) : 0, listed.get(id)?.latest?.change ?? 0);
      const ids = [...new Set([...local.keys(), ...listed.keys()])].sort((a, b) => change(b) - change(a));
      for (const id of ids.slice(0, MAX_CONVERSATIONS)) {
        await this.#bringTogether(local.get(id), id, listed.get(id) ?? new Copies());
      }
      this.onTold();
      const count = (await this.storage.conversations()).length;
      this.onState(`Conversations on the server: ${count}`, false);
    });
  }

  /** Copies what was saved, once no more has come for a while. */
  #later(id) {
    this.waiting.add(id);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.flush(), WAIT_MS);
  }

  /** Copies all that waits. */
  flush() {
    clearTimeout(this.timer);
    if (!this.waiting.size) return this.work;
    return this.#inTurn(async () => {
      const listed = await this.#listed();
      const heads = new Map((await this.storage.conversations()).map((head) => [head.id, head]));
      for (const id of this.waiting) {
        this.waiting.delete(id);
        await this.#bringTogether(heads.get(id), id, listed.get(id) ?? new Copies());
      }
    });
  }

  /** One thing at a time: a list of files is right until the next change. */
  #inTurn(act) {
    this.work = this.work.then(act).catch((error) => this.onState(`Not on the server: ${error.message}`, true));
    return this.work;
  }

  async #listed() {
    const found = new Map();
    for await (const file of listFiles(this.key())) {
      const [, id, change] = NAME.exec(file.filename) ?? [];
      if (!id) continue;
      if (!found.has(id)) found.set(id, new Copies());
      found.get(id).add(file, change);
    }
    return found;
  }

  async #bringTogether(head, id, copies) {
    const latest = copies.latest;
    if (copies.mark && !(head && changeOf(head) > copies.mark.created_at * 1000)) {
      if (head) await this.storage.remove(id);
      return;
    }
    if (!latest) {
      if (head) await this.#write(head, copies);
      return;
    }
    if (head?.copied === latest.change) {
      if (changeOf(head) > latest.change) await this.#write(head, copies);
      return;
    }
    await this.#merge(head, latest, copies);
  }

  /** Puts the messages of a newer copy and of this browser together. */
  async #merge(head, latest, copies) {
    if (latest.file.bytes > MAX_BYTES) throw new Error("a conversation there is larger than 32 MB.");
    const copy = readCopy(await readFile(this.key(), latest.file.id));
    const known = new Set(copy.messages.map(({ id }) => id));
    const own = head ? await this.storage.messages(head.id) : [];
    const isCopyOlder = head && changeOf(head) > latest.change;
    // A message that both have is that of the side that was changed last.
    const theirs = isCopyOlder ? copy.messages.filter(({ id }) => !own.some((message) => message.id === id)) : copy.messages;
    const changed = Math.max(latest.change, head ? changeOf(head) : 0);
    const merged = { ...(isCopyOlder ? head : copy.head), changed, copied: latest.change };
    this.copied.set(merged.id, latest.change);
    await this.storage.save(merged, theirs);
    const isMore = head && (isCopyOlder || own.some(({ id }) => !known.has(id)));
    if (!isMore) return;
    merged.changed = Math.max(Date.now(), merged.changed + 1);
    await this.#write(merged, copies);
  }

  async #write(head, copies) {
    const change = changeOf(head);
    const messages = await this.storage.messages(head.id);
    const text = JSON.stringify({ ...head, copied: undefined, messages });
    if (text.length > MAX_BYTES) throw new Error(`“${head.title}” is larger than 32 MB.`);
    await writeFile(this.key(), nameOf(head.id, change), text);
    this.copied.set(head.id, change);
    // The page may have changed it meanwhile: then the list has a newer head, which is copied later.
    const now = (await this.storage.conversations()).find(({ id }) => id === head.id);
    if (now) await this.storage.save({ ...now, changed: Math.max(changeOf(now), change), copied: change }, []);
    for (const { file } of copies.files) await deleteFile(this.key(), file.id);
    if (copies.mark) await deleteFile(this.key(), copies.mark.id);
  }

  async #markDeleted(id, copies) {
    if (!copies?.latest) return;
    await writeFile(this.key(), nameOf(id, "deleted"), "{}", MARK_LIFETIME_S);
    for (const { file } of copies.files) await deleteFile(this.key(), file.id);
  }
}
