// Short notes in the corner, which disappear after some time; errors stay longer.

import { h } from "./dom.js";

const SHOWN_MS = 4500;
const ERROR_MS = 15_000;
const box = h("div", { class: "toasts", role: "status", "aria-live": "polite" });

/** Show that an action has succeeded. */
export function toast(text) {
  add(text, "", SHOWN_MS);
}

/** Show an error with the broker's reason. */
export function toastError(error) {
  add(error.message ?? String(error), "bad", ERROR_MS);
}

function add(text, look, shownMs) {
  if (!box.isConnected) document.body.append(box);
  const note = h("div", { class: `toast ${look}` }, h("span", {}, text));
  note.append(h("button", { type: "button", class: "push", "aria-label": "Close", on: { click: () => note.remove() } }, "×"));
  box.append(note);
  while (box.children.length > 4) box.firstChild.remove();
  setTimeout(() => note.remove(), shownMs);
}
