// The chat: which conversation is open, which answers are coming, and what is written to the storage when.

import { Answer } from "./answer.js";
import { Conversation, titleOf } from "./conversation.js";
import { Frames } from "./frames.js";

const SAVE_EVERY_MS = 2_000;
const MAX_ANSWERS = 4;

export class Chat {
  /**
   * `view` shows the open conversation. `hooks`: `request()` gives model, key, system prompt and settings of the
   * next request, `onList()` is called when the list has changed, `onState()` when an answer begins or ends,
   * `onNotKept(error)` when the storage fails, `onRefused(error)` when the server refuses a key.
   */
  constructor(storage, view, hooks) {
    this.storage = storage;
    this.view = view;
    this.hooks = hooks;
    /** Answers that are coming, of all conversations, by the id of their message. */
    this.answers = new Map();
    /** Conversations with such an answer: they are read from here, not from the storage. */
    this.live = new Map();
    this.conversation = null;
  }

  get isBusy() {
    return this.isAnswering(this.conversation?.record.id);
  }

  /** Whether the open conversation may have another answer. */
  get isReady() {
    return !this.isBusy && this.answers.size < MAX_ANSWERS && !this.conversation?.isFull;
  }

  isAnswering(id) {
    return [...this.answers.values()].some(({ message }) => message.conversation === id);
  }

  /** Begins a conversation; it is kept from its first message on. */
  create(system) {
    this.opening = null;
    this.conversation = Conversation.create({ system, model: "" });
    this.view.clear();
    this.#show();
  }

  /** Opens a conversation, and shows a message of it. Says whether there is such a one. */
  async open(id, message) {
    const opening = (this.opening = {});
    const conversation = this.live.get(id) ?? (await this.#read(id));
    // Where another one was asked for meanwhile, that one is shown.
    if (this.opening !== opening) return true;
    if (!conversation) return false;
    this.conversation = conversation;
    const found = message && conversation.messages.get(message.id);
    if (found && !conversation.path.includes(found)) conversation.select(found);
    this.view.clear();
    this.#show();
    this.view.toBottom();
    if (found) this.view.reveal(found);
    return true;
  }

  async #read(id) {
    const head = (await this.storage.conversations()).find((head) => head.id === id);
    return head && new Conversation(head, await this.storage.messages(id));
  }

  #show() {
    this.view.show(this.conversation, this.answers);
    this.hooks.onState();
  }

  get last() {
    return this.conversation?.path.at(-1) ?? null;
  }

  /** Writes a conversation's head and some of its messages. */
  async #save(conversation, ...messages) {
    try {
      await this.storage.save(conversation.record, messages);
      await this.hooks.onList();
    } catch (error) { this.hooks.onNotKept(error); }
  }

  /** Sends a message; `images` are `data:` URLs. */
  send(text, images = []) {
    const fields = { content: text, ...(images.length && { images }) };
    return this.#ask(this.conversation.add(this.last, "user", fields));
  }

  /** Asks for an answer to a new message. */
  async #ask(message) {
    const { conversation } = this;
    this.#save(conversation, message);
    await this.#answer(conversation, message);
  }

  /** Writes another version of a message; one of the reader's is answered. */
  async edit(message, text) {
    const { conversation } = this;
    const { role, model, format, images } = message;
    const fields = role === "assistant" ? { content: text, model, format } : { content: text, ...(images && { images }) };
    const version = conversation.add(conversation.parentOf(message), role, fields);
    if (role === "user") await this.#ask(version);
    else {
      this.#show();
      await this.#save(conversation, version);
    }
  }

  regenerate(message) {
    const question = message.role === "user" ? message : this.conversation.parentOf(message);
    return this.#answer(this.conversation, question);
  }

  /** Lets the model go on with an answer that was cut. */
  resume(message) {
    return this.#run(this.conversation, message, this.conversation.pathTo(message), true);
  }

  /** Begins another version of an answer, with another token at one place, and lets the model go on. */
  choose(message, idx, text) {
    const { conversation } = this;
    const tokens = message.tokens.slice(0, idx);
    const before = tokens.map(([token]) => token).join("");
    const { model, format, reasoning } = message;
    const fields = { content: before + text, model, format, reasoning, tokens };
    const version = conversation.add(conversation.parentOf(message), "assistant", fields);
    return this.#run(conversation, version, conversation.pathTo(version), true);
  }

  /** Adds the results of a message's calls, and asks for the answer to them. */
  async giveResults(message, texts) {
    const { conversation } = this;
    let last = message;
    const results = message.calls.map(({ id, name }, i) => {
      last = conversation.add(last, "tool", { content: texts[i], call: id, name });
      return last;
    });
    this.#save(conversation, ...results);
    await this.#answer(conversation, last);
  }

  select(message) {
    this.conversation.select(message);
    this.#show();
    this.#save(this.conversation);
  }

  async rename(head, title) {
    const conversation = this.#known(head);
    conversation.record.title = titleOf(title);
    await this.#save(conversation);
  }

  #known(head) {
    const isOpen = this.conversation?.record.id === head.id;
    return isOpen ? this.conversation : this.live.get(head.id) ?? new Conversation(head);
  }

  async setSystem(system) {
    if (!this.conversation || this.conversation.record.system === system) return;
    this.conversation.record.system = system;
    if (this.last) await this.#save(this.conversation);
  }

  async remove(head) {
    for (const answer of this.answers.values()) if (answer.message.conversation === head.id) answer.stop(true);
    this.live.delete(head.id);
    await this.storage.remove(head.id);
    this.hooks.onList();
  }

  async removeAll() {
    for (const answer of this.answers.values()) answer.stop(true);
    this.live.clear();
    await this.storage.clear();
    this.hooks.onList();
  }

  async #answer(conversation, question) {
    const { model, settings } = this.hooks.request(conversation);
    const format = settings.format && "json";
    const message = conversation.add(question, "assistant", { model, ...(format && { format }) });
    await this.#run(conversation, message, conversation.pathTo(question), false);
  }

  async #run(conversation, message, path, isContinued) {
    const { record } = conversation;
    const request = { ...this.hooks.request(conversation), path, isContinued };
    record.model = request.model;
    const isOpen = () => this.conversation === conversation;
    const draw = () => {
      if (isOpen()) this.view.following(() => this.view.update(message));
    };
    const frames = new Frames(draw);
    let saved = performance.now();
    const answer = new Answer(message, request, () => {
      frames.request();
      if (performance.now() - saved < SAVE_EVERY_MS) return;
      saved = performance.now();
      this.#save(conversation, message);
    });
    this.answers.set(message.id, answer);
    this.live.set(record.id, conversation);
    this.#show();
    this.view.toBottom();
    this.hooks.onList();
    await answer.run();
    frames.cancel();
    this.answers.delete(message.id);
    if (!this.isAnswering(record.id)) this.live.delete(record.id);
    if (answer.isDiscarded) return;
    record.updated = Date.now();
    draw();
    this.hooks.onState(isOpen() ? message : null);
    if (answer.failure?.status === 401) this.hooks.onRefused(answer.failure);
    await this.#save(conversation, message);
  }

  stop() {
    for (const answer of this.answers.values()) {
      if (answer.message.conversation === this.conversation.record.id) answer.stop();
    }
  }
}
