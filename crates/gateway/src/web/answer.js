// One answer while it comes: the request for it, and what its chunks add to the message.

import { requestMessages } from "./conversation.js";
import { ServerError, streamChat } from "./server.js";

const MAX_TOKENS_KEPT = 8_192;
const MAX_CALLS = 128;
const N_ALTERNATIVES = 5;

/** The body of a request for the answer behind a path, or for the rest of its last message. */
function requestBody({ model, system, path, settings, isContinued }) {
  const { temperature, top_p, max_tokens, seed, thinking, format, schema, tools, probabilities } = settings;
  const messages = requestMessages(system, path);
  const body = { model, messages, stream: true, stream_options: { include_usage: true, include_timings: true } };
  Object.assign(body, { temperature, top_p, max_completion_tokens: max_tokens, seed });
  if (thinking !== undefined) body.chat_template_kwargs = { enable_thinking: thinking };
  if (tools) body.tools = tools;
  if (probabilities) Object.assign(body, { logprobs: true, top_logprobs: N_ALTERNATIVES });
  if (isContinued) Object.assign(body, { add_generation_prompt: false, continue_final_message: true });
  // A grammar would begin anew in the middle of an answer.
  if (isContinued) return body;
  if (format === "json") body.response_format = { type: "json_object" };
  if (format === "schema") body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return body;
}

export class Answer {
  /** `message` is filled; `onChange` is called after each change. */
  constructor(message, request, onChange) {
    this.message = message;
    this.request = request;
    this.onChange = onChange;
    this.controller = new AbortController();
    /** Why the server has to be waited for, while it has. */
    this.waiting = null;
  }

  /** Ends it; a discarded one belongs to a conversation that is gone. */
  stop(isDiscarded = false) {
    this.isDiscarded = isDiscarded;
    this.controller.abort();
  }

  /** Runs until the answer is whole, stopped or failed, and notes which in the message. Rejects never. */
  async run() {
    const { message } = this;
    this.asked = performance.now();
    message.stats = {};
    delete message.error;
    try {
      const options = { key: this.request.key, signal: this.controller.signal, onWait: (reason) => this.#wait(reason) };
      for await (const chunk of streamChat(requestBody(this.request), options)) this.#add(chunk);
    } catch (error) {
      if (error.name === "AbortError") message.stats.finish = "stopped";
      else {
        message.error = error.message;
        this.failure = error instanceof ServerError ? error : null;
      }
    }
    this.waiting = null;
  }

  #wait(reason) {
    if (this.waiting && !reason) this.asked = performance.now();
    this.waiting = reason;
    if (reason) this.onChange();
  }

  #add(chunk) {
    const { message } = this;
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    // Engines of other makers use one of two names.
    const reasoning = delta.reasoning || delta.reasoning_content;
    if (delta.content || reasoning || delta.tool_calls) {
      this.first ??= performance.now();
      message.stats.first = this.first - this.asked;
      if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
      if (delta.content) this.#addContent(delta.content, choice.logprobs?.content);
      for (const call of delta.tool_calls ?? []) this.#addCall(call);
      this.onChange();
    }
    if (choice?.finish_reason) message.stats.finish = choice.finish_reason;
    if (chunk.usage) {
      message.stats.tokens = chunk.usage.completion_tokens;
      message.stats.rate = chunk.timings?.predicted_per_second;
    }
  }

  #addContent(text, logprobs) {
    const { message } = this;
    message.content += text;
    if (!logprobs) return;
    message.tokens ??= [];
    const room = MAX_TOKENS_KEPT - message.tokens.length;
    const kept = ({ token, logprob }) => [token, Math.round(logprob * 1e4) / 1e4];
    for (const entry of logprobs.slice(0, room)) message.tokens.push([...kept(entry), entry.top_logprobs.map(kept)]);
  }

  #addCall({ index, id, function: part }) {
    if (!(index < MAX_CALLS)) return;
    const calls = (this.message.calls ??= []);
    const call = (calls[index] ??= { id: "", name: "", arguments: "" });
    if (id) call.id = id;
    call.name += part?.name ?? "";
    call.arguments += part?.arguments ?? "";
  }
}
