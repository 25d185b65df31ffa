// A box in which a message is changed.

import { button, element } from "./dom.js";

const MAX_ROWS = 20;

/** `onEnd(text)` is called once, with the new text, or without one when it is left as it was. */
export function editor(message, onEnd) {
  const isQuestion = message.role === "user";
  const form = element("form", "editor");
  const box = element("textarea");
  box.value = message.content;
  box.rows = Math.min(MAX_ROWS, message.content.split("\n").length + 1);
  box.setAttribute("aria-label", isQuestion ? "Edit your message" : "Edit the answer");
  const actions = element("div", "actions");
  const save = button(isQuestion ? "Send" : "Save", () => onEnd(box.value), "primary");
  actions.append(button("Cancel", () => onEnd()), save);
  form.append(box, actions);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") onEnd();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) onEnd(box.value);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return form;
}
