// The shown path of a conversation, and where it is scrolled to.

import { $, button } from "./dom.js";
import { MessageView } from "./message_view.js";

/** So many messages are shown at first; a button shows as many more. */
const N_SHOWN = 100;
const NEAR_BOTTOM_PX = 80;

export class ConversationView {
  constructor(actions) {
    this.actions = actions;
    this.views = [];
    this.n_shown = N_SHOWN;
    this.earlier = button("", () => this.#showEarlier(), "quiet earlier");
  }

  /** Forgets what is shown: another conversation comes. */
  clear() {
    this.views = [];
    this.n_shown = N_SHOWN;
    $("log").replaceChildren();
  }

  /** Shows the path of a conversation; messages that stay keep their elements. `answers` has those that are coming. */
  show(conversation, answers) {
    this.conversation = conversation;
    this.answers = answers;
    const path = conversation.path;
    const shown = path.slice(-this.n_shown);
    const n_hidden = path.length - shown.length;
    let n_same = 0;
    while (this.views[n_same] && this.views[n_same].message === shown[n_same]) n_same += 1;
    for (const view of this.views.splice(n_same)) view.element.remove();
    for (const message of shown.slice(n_same)) {
      const view = new MessageView(message, this.actions);
      this.views.push(view);
      $("log").append(view.element);
    }
    this.views.forEach((view) => this.update(view.message));
    if (n_hidden > 0) {
      this.earlier.textContent = `Show earlier messages (${n_hidden})`;
      $("log").prepend(this.earlier);
    } else {
      this.earlier.remove();
    }
    $("welcome").hidden = path.length > 0;
  }

  #showEarlier() {
    this.n_shown += N_SHOWN;
    this.views = [];
    $("log").replaceChildren();
    this.show(this.conversation, this.answers);
  }

  /** Shows a message as it is now, if it is on the path. */
  update(message) {
    const view = this.viewOf(message);
    const results = this.conversation.children.get(message.id);
    const isLast = message.id === this.conversation.record.leaf;
    const needsResults = isLast && Boolean(message.calls?.length) && !results;
    view?.update({ versions: this.conversation.versions(message), needsResults }, this.answers.get(message.id));
  }

  viewOf(message) {
    return this.views.find((view) => view.message === message);
  }

  get isAtBottom() {
    const box = $("scroll");
    return box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_BOTTOM_PX;
  }

  toBottom() {
    $("scroll").scrollTop = $("scroll").scrollHeight;
  }

  /** Runs `draw`, and stays at the end where the reader is there. */
  following(draw) {
    const follow = this.isAtBottom;
    draw();
    if (follow) this.toBottom();
  }

  reveal(message) {
    const view = this.viewOf(message);
    view?.element.scrollIntoView({ block: "center" });
    view?.element.focus({ preventScroll: true });
  }
}
