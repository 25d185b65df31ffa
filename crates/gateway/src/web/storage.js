// Where conversations are kept: in the browser's IndexedDB. Its records are those of `conversation.js`: a
// conversation's head, and each message by itself, so that an answer is written without the ones before it. Whatever
// else keeps conversations (`memory_storage.js`, `server_copy.js`) has the methods that the page calls.

const DATABASE = "throng";
const VERSION = 1;
export const MAX_CONVERSATIONS = 1_000;
const TOGETHER_MS = 500;

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

const committed = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onabort = transaction.onerror = () => reject(transaction.error);
});

export class BrowserStorage {
  static async open() {
    const request = indexedDB.open(DATABASE, VERSION);
    request.onupgradeneeded = () => {
      const conversations = request.result.createObjectStore("conversations", { keyPath: "id" });
      conversations.createIndex("updated", "updated");
      const messages = request.result.createObjectStore("messages", { keyPath: "id" });
      messages.createIndex("conversation", ["conversation", "created"]);
    };
    return new BrowserStorage(await done(request));
  }

  constructor(database) {
    this.database = database;
    this.channel = new BroadcastChannel(DATABASE);
  }

  /** Calls back when another tab has changed the list: once for changes that come together. */
  onChange(callback) {
    let pending = 0;
    this.channel.onmessage = () => {
      pending ||= setTimeout(() => {
        pending = 0;
        callback();
      }, TOGETHER_MS);
    };
  }

  /** Heads of all conversations, the latest first. */
  async conversations() {
    const index = this.database.transaction("conversations").objectStore("conversations").index("updated");
    return (await done(index.getAll())).reverse();
  }

  /** The messages of a conversation, oldest first. */
  messages(id) {
    const index = this.database.transaction("messages").objectStore("messages").index("conversation");
    return done(index.getAll(IDBKeyRange.bound([id], [id, []])));
  }

  /** The head of a conversation; `undefined` where there is none. */
  head(id) {
    return done(this.database.transaction("conversations").objectStore("conversations").get(id));
  }

  /** Writes a head and some messages at once; beyond the most conversations the oldest goes. */
  save(head, messages) {
    return this.change(head.id, () => ({ head, messages }));
  }

  /**
   * Changes a conversation in one transaction: `act` gets its head as it is now, `undefined` without one, and returns
   * the head and the messages to write, or nothing to change nothing.
   */
  async change(id, act) {
    const transaction = this.database.transaction(["conversations", "messages"], "readwrite");
    const heads = transaction.objectStore("conversations");
    const changed = act(await done(heads.get(id)));
    if (!changed) return;
    heads.put(changed.head);
    for (const message of changed.messages) transaction.objectStore("messages").put(message);
    await committed(transaction);
    await this.#removeBeyond(MAX_CONVERSATIONS);
    this.channel.postMessage("changed");
  }

  async #removeBeyond(limit) {
    const store = this.database.transaction("conversations").objectStore("conversations");
    const n_beyond = (await done(store.count())) - limit;
    if (n_beyond <= 0) return;
    for (const id of await done(store.index("updated").getAllKeys(null, n_beyond))) await this.#delete(id);
  }

  async remove(id) {
    await this.#delete(id);
    this.channel.postMessage("changed");
  }

  async #delete(id) {
    const transaction = this.database.transaction(["conversations", "messages"], "readwrite");
    transaction.objectStore("conversations").delete(id);
    const messages = transaction.objectStore("messages");
    const keys = await done(messages.index("conversation").getAllKeys(IDBKeyRange.bound([id], [id, []])));
    for (const key of keys) messages.delete(key);
    await committed(transaction);
  }

  async clear() {
    const transaction = this.database.transaction(["conversations", "messages"], "readwrite");
    transaction.objectStore("conversations").clear();
    transaction.objectStore("messages").clear();
    await committed(transaction);
    this.channel.postMessage("changed");
  }
}
