// The box in which a message is written, and the button that sends it or stops the answer.

import { $ } from "./dom.js";

/** `actions`: `send(text)`, `stop()`, `editLast()`, `isBusy()`, `isReady()`. */
export class Composer {
  constructor(actions) {
    this.actions = actions;
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (actions.isBusy()) actions.stop();
      else this.#submit();
    });
    $("prompt").addEventListener("input", () => this.update());
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key === "ArrowUp" && !$("prompt").value && !event.shiftKey) {
        if (actions.editLast()) event.preventDefault();
      }
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#submit();
    });
  }

  #submit() {
    const text = $("prompt").value;
    if (!text.trim() || this.actions.isBusy() || !this.actions.isReady()) return;
    $("prompt").value = "";
    this.actions.send(text);
    this.update();
  }

  /** Shows whether a message can be sent, or an answer stopped. */
  update() {
    const isBusy = this.actions.isBusy();
    document.body.classList.toggle("busy", isBusy);
    $("send").setAttribute("aria-label", isBusy ? "Stop" : "Send");
    $("log").setAttribute("aria-busy", String(isBusy));
    if (!CSS.supports("field-sizing", "content")) {
      $("prompt").style.height = "auto";
      $("prompt").style.height = $("prompt").scrollHeight + "px";
    }
    $("send").disabled = !isBusy && (!$("prompt").value.trim() || !this.actions.isReady());
  }

  focus() {
    // Chromium gives the focus back to the box when a dialog closes, but types nothing into it.
    $("prompt").blur();
    $("prompt").focus({ preventScroll: true });
  }
}
