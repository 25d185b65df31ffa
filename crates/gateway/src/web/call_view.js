// Calls of tools, folded. The page runs no tools: where a call has no result yet, the reader may give one.

import { CodeBlock, indentedJson } from "./code_block.js";
import { button, element } from "./dom.js";

/** A folded call; `update(call)` shows more of its arguments. */
export class CallView {
  constructor() {
    this.element = element("details", "call");
    this.summary = element("summary");
    this.block = new CodeBlock("json");
    this.element.append(this.summary, this.block.element);
  }

  update({ name, arguments: text }, isComplete) {
    this.summary.textContent = `Tool call: ${name}`;
    this.block.update(isComplete ? indentedJson(text) : text, isComplete);
  }
}

/** A folded result of a tool. */
export function resultView(message) {
  const view = element("details", "call");
  const block = new CodeBlock("json");
  block.update(indentedJson(message.content));
  view.append(element("summary", "", `Result of ${message.name}`), block.element);
  return view;
}

/** A form for the results of calls; `onResults(texts)` gets one for each. */
export function resultForm(calls, onResults) {
  const form = element("form", "results");
  const fields = calls.map(({ name }) => {
    const label = element("label", "", `Result of ${name}`);
    const field = element("textarea");
    field.rows = 2;
    label.append(field);
    form.append(label);
    return field;
  });
  const send = button("Send results", () => onResults(fields.map((field) => field.value)), "primary");
  form.append(send);
  form.addEventListener("submit", (event) => event.preventDefault());
  return form;
}
