// The tokens of an answer with their probabilities: darker where the model was less sure. A token that is pointed at,
// or reached with the arrow keys, shows what else could have stood there; choosing one of these goes on from it.

import { button, element } from "./dom.js";

const N_SHADES = 5;

const percent = (logprob) => {
  const value = 100 * Math.exp(logprob);
  if (value < 0.1) return "< 0.1 %";
  return value >= 99.95 ? "100 %" : `${value.toFixed(1)} %`;
};

/** Blanks that would not be seen, as signs. */
const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";

/** `tokens` are `[text, logprob, [[text, logprob], …]]`; `onChoose(idx, text)` goes on from another one. */
export function tokenView(tokens, onChoose) {
  const view = element("div", "tokens");
  view.setAttribute("role", "group");
  view.setAttribute("aria-label", "Tokens with their probabilities; arrow keys move between them");
  const text = element("div", "token-text");
  text.dir = "auto";
  const tip = element("div", "token-tip");
  tip.setAttribute("role", "status");
  tip.hidden = true;
  const nodes = tokens.map(([part, logprob], idx) => {
    const shade = Math.min(N_SHADES - 1, Math.floor((1 - Math.exp(logprob)) * N_SHADES));
    const node = element("span", `token shade${shade}`, part);
    node.dataset.idx = idx;
    node.tabIndex = idx === 0 ? 0 : -1;
    return node;
  });
  text.append(...nodes);
  view.append(text, tip);

  let shown = -1;
  const show = (idx) => {
    if (idx === shown || !nodes[idx]) return;
    nodes[shown]?.removeAttribute("aria-current");
    shown = idx;
    nodes[idx].setAttribute("aria-current", "true");
    tip.replaceChildren(...alternatives(tokens[idx], (chosen) => onChoose(idx, chosen)));
    tip.hidden = false;
    const left = Math.min(nodes[idx].offsetLeft, Math.max(0, view.clientWidth - tip.offsetWidth));
    tip.style.left = `${left}px`;
    tip.style.top = `${nodes[idx].offsetTop + nodes[idx].offsetHeight}px`;
  };
  const hide = () => {
    nodes[shown]?.removeAttribute("aria-current");
    shown = -1;
    tip.hidden = true;
  };
  const indexOf = (event) => Number(event.target.closest?.(".token")?.dataset.idx ?? NaN);
  view.addEventListener("pointerover", (event) => show(indexOf(event)));
  view.addEventListener("pointerleave", hide);
  view.addEventListener("focusin", (event) => show(indexOf(event)));
  view.addEventListener("focusout", (event) => { if (!view.contains(event.relatedTarget)) hide(); });
  view.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" && event.target.classList.contains("token")) tip.querySelector("button")?.focus();
    else if (event.key === "Escape" && shown >= 0) nodes[shown].focus();
    else if (step && nodes[shown + step]) nodes[shown + step].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return view;
}

/** What a token was, and what else it could have been. */
function alternatives([text, logprob, others], onChoose) {
  const head = element("p", "", `${visible(text)} ${percent(logprob)}`);
  const list = element("ul");
  for (const [other, otherLogprob] of others) {
    if (other === text) continue;
    const item = element("li");
    const choice = button(visible(other), () => onChoose(other), "quiet");
    choice.title = "Go on from here with this token";
    item.append(choice, element("span", "", percent(otherLogprob)));
    list.append(item);
  }
  return list.childElementCount ? [head, list] : [head];
}
