// One message on the page: its text, the model's reasoning and calls, and what can be done with it.

import { CallView, resultForm, resultView } from "./call_view.js";
import { CodeBlock, indentedJson } from "./code_block.js";
import { button, copy, element, signButton } from "./dom.js";
import { editor } from "./editor.js";
import { thumbnail } from "./images.js";
import { MarkdownView } from "./markdown_view.js";
import { tokenView } from "./token_view.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };

function describe(stats) {
  const parts = [];
  if (stats.rate) parts.push(`${stats.rate < 10 ? stats.rate.toFixed(1) : Math.round(stats.rate)} tokens/s`);
  if (stats.first !== undefined) parts.push(`first token ${duration(stats.first)}`);
  if (stats.tokens !== undefined) parts.push(`${stats.tokens} token${stats.tokens === 1 ? "" : "s"}`);
  if (stats.finish === "length") parts.push("cut at the limit");
  if (stats.finish === "stopped") parts.push("stopped");
  return parts;
}

function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

export class MessageView {
  /** `actions` are what the buttons do: `edit`, `regenerate`, `resume`, `choose`, `select`, `giveResults`. */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.element = element("article", `message ${message.role}`);
    this.element.tabIndex = -1;
    this.element.append(element("h2", "visually-hidden", NAMES[message.role]));
    this.text = element("div", "text");
    this.footer = element("footer");
    if (message.role === "assistant") this.#buildAnswer();
    else if (message.role === "tool") this.element.append(resultView(message));
    else {
      this.text.textContent = message.content;
      this.text.dir = "auto";
      if (message.images?.length) this.element.append(this.#imageList());
      this.element.append(this.text);
    }
    this.element.append(this.footer);
  }

  #imageList() {
    const list = element("div", "images");
    list.append(...this.message.images.map((url, i) => thumbnail(url, `Image ${i + 1} of this message`)));
    return list;
  }

  #buildAnswer() {
    this.reasoning = element("details", "reasoning");
    this.reasoning.append(element("summary"), element("div", "thought"));
    this.reasoning.lastChild.dir = "auto";
    this.calls = element("div", "calls");
    this.callViews = [];
    this.element.append(this.reasoning, this.text, this.calls);
    if (this.message.format) {
      this.json = new CodeBlock("json");
      this.text.append(this.json.element);
    } else {
      this.markdown = new MarkdownView(this.text);
    }
  }

  /** Shows the message as it is now; `answer` is the one that fills it, while it comes. */
  update(context, answer = null) {
    this.element.classList.toggle("pending", Boolean(answer));
    if (this.message.role === "assistant") this.#updateAnswer(answer);
    this.#updateState(answer);
    if (answer) this.footer.replaceChildren();
    else this.#updateFooter(context);
  }

  #updateAnswer(answer) {
    const { message } = this;
    this.#updateReasoning(Boolean(answer) && !message.content && !message.calls);
    if (this.json) {
      this.json.element.hidden = !message.content;
      this.json.update(answer ? message.content : indentedJson(message.content), !answer);
    } else {
      this.markdown.update(message.content, !answer);
    }
    (message.calls ?? []).forEach((call, i) => {
      this.callViews[i] ??= new CallView();
      if (!this.callViews[i].element.parentNode) this.calls.append(this.callViews[i].element);
      this.callViews[i].update(call, !answer);
    });
  }

  /** The reasoning, folded until it is opened: it stays as the reader left it while text is added. */
  #updateReasoning(thinks) {
    const text = this.message.reasoning ?? "";
    const [summary, thought] = this.reasoning.children;
    this.reasoning.hidden = !text;
    summary.textContent = thinks ? "Thinking…" : "Reasoning";
    this.reasoning.classList.toggle("thinks", thinks);
    const shown = thought.firstChild;
    if (shown && text.startsWith(shown.data)) shown.appendData(text.slice(shown.length));
    else thought.textContent = text;
  }

  #updateState(answer) {
    this.element.querySelector(":scope > .error, :scope > .waiting")?.remove();
    const line = (className, text, role) => {
      const node = element("p", className, text);
      node.setAttribute("role", role);
      this.footer.before(node);
    };
    if (answer?.waiting) line("waiting", answer.waiting, "status");
    if (this.message.error) line("error", this.message.error, "alert");
  }

  #updateFooter({ versions, needsResults }) {
    const { message, actions } = this;
    const parts = [];
    if (versions.length > 1) parts.push(this.#versionSwitch(versions));
    const copyButton = button("Copy", () => copy(message.content, copyButton), "quiet copy");
    if (message.content) parts.push(copyButton);
    if (message.role !== "tool") parts.push(button("Edit", () => this.edit(), "quiet edit"));
    if (message.role === "assistant") parts.push(...this.#answerButtons());
    const stats = message.stats ? describe(message.stats) : [];
    if (stats.length) parts.push(element("span", "stats", stats.join(" · ")));
    this.footer.replaceChildren(...parts);
    this.results?.remove();
    this.results = needsResults ? resultForm(message.calls, (texts) => actions.giveResults(message, texts)) : null;
    if (this.results) this.footer.before(this.results);
  }

  #answerButtons() {
    const { message, actions } = this;
    const parts = [button("Regenerate", () => actions.regenerate(message), "quiet regenerate")];
    if (isCut(message)) parts.push(button("Continue", () => actions.resume(message), "quiet resume"));
    if (message.tokens?.length) {
      const toggle = button("Tokens", () => this.#toggleTokens(toggle), "quiet show-tokens");
      toggle.setAttribute("aria-pressed", String(Boolean(this.tokens)));
      parts.push(toggle);
    }
    return parts;
  }

  #versionSwitch(versions) {
    const at = versions.indexOf(this.message);
    const group = element("span", "versions");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "Versions of this message");
    const step = (sign, label, to) => {
      const node = signButton(sign, label, () => this.actions.select(versions[to]));
      node.disabled = !versions[to];
      return node;
    };
    const count = element("span", "count", `${at + 1}/${versions.length}`);
    group.append(step("‹", "Previous version", at - 1), count, step("›", "Next version", at + 1));
    return group;
  }

  #toggleTokens(toggle) {
    if (this.tokens) {
      this.tokens.remove();
      this.tokens = null;
    } else {
      this.tokens = tokenView(this.message.tokens, (idx, text) => this.actions.choose(this.message, idx, text));
      this.text.after(this.tokens);
    }
    this.text.hidden = Boolean(this.tokens);
    toggle.setAttribute("aria-pressed", String(Boolean(this.tokens)));
  }

  /** Puts a box in place of the message, with which another version of it is written. */
  edit() {
    if (this.editor) return;
    const onEnd = (text) => {
      this.editor.remove();
      this.editor = null;
      this.element.classList.remove("edited");
      this.footer.querySelector(".edit")?.focus();
      if (text?.trim() && text !== this.message.content) this.actions.edit(this.message, text);
    };
    this.editor = editor(this.message, onEnd);
    this.element.classList.add("edited");
    this.footer.before(this.editor);
    this.editor.querySelector("textarea").focus();
  }
}

/** Whether an answer ended before the model did. */
function isCut({ content, stats, error, calls }) {
  return Boolean(content) && !calls?.length && (Boolean(error) || ["length", "stopped"].includes(stats?.finish));
}
