// The box in which a message is written, and the button that sends it or stops the answer.

import { $, announce, element, signButton } from "./dom.js";
import { MAX_IMAGES, TYPES, readImage, thumbnail } from "./images.js";

/** `actions`: `send(text, images)`, `stop()`, `editLast()`, `isBusy()`, `isReady()`, `takesImages()`. */
export class Composer {
  constructor(actions) {
    this.actions = actions;
    /** `data:` URLs of the images of the next message. */
    this.images = [];
    this.#takeImages();
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

  /** Images come by a button, from the clipboard, or are dropped on the page. */
  #takeImages() {
    $("attach-file").accept = TYPES.join(",");
    $("attach").addEventListener("click", () => $("attach-file").click());
    $("attach-file").addEventListener("change", () => {
      this.#attach([...$("attach-file").files]);
      $("attach-file").value = "";
    });
    const filesOf = (data) => [...(data?.files ?? [])].filter(({ type }) => TYPES.includes(type));
    $("prompt").addEventListener("paste", (event) => {
      const files = filesOf(event.clipboardData);
      if (!files.length || !this.actions.takesImages()) return;
      event.preventDefault();
      this.#attach(files);
    });
    document.addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    document.addEventListener("drop", (event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      if (this.actions.takesImages()) this.#attach(filesOf(event.dataTransfer));
    });
  }

  async #attach(files) {
    const read = (await Promise.all(files.map(readImage))).filter(Boolean);
    this.images = [...this.images, ...read].slice(0, MAX_IMAGES);
    announce(`Images attached: ${this.images.length}`);
    this.#showImages();
  }

  #showImages() {
    const entries = this.images.map((url, i) => {
      const entry = element("span", "attachment");
      const remove = signButton("×", `Remove image ${i + 1}`, () => {
        this.images = this.images.filter((_, at) => at !== i);
        this.#showImages();
        this.focus();
      });
      entry.append(thumbnail(url, `Image ${i + 1}`), remove);
      return entry;
    });
    $("attached").replaceChildren(...entries);
    $("attached").hidden = !entries.length;
    this.update();
  }

  #submit() {
    const text = $("prompt").value;
    if (!text.trim() || this.actions.isBusy() || !this.actions.isReady()) return;
    const { images } = this;
    $("prompt").value = "";
    this.images = [];
    this.#showImages();
    this.actions.send(text, images);
    this.update();
  }

  /** Shows whether a message can be sent, or an answer stopped. */
  update() {
    const isBusy = this.actions.isBusy();
    $("attach").hidden = !this.actions.takesImages();
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
