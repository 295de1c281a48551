// Short notes at the corner. A success leaves by itself, an error stays until it is closed.

import { h } from "./dom.js";

const SHOWN_MS = 4500;
const box = h("div", { class: "toasts", role: "status", "aria-live": "polite" });

/** Say that something was done. */
export function toast(text) {
  const note = add(text, "");
  setTimeout(() => note.remove(), SHOWN_MS);
}

/** Say that something failed, with the broker's reason. */
export function toastError(error) {
  add(error.message ?? String(error), "bad");
}

function add(text, look) {
  if (!box.isConnected) document.body.append(box);
  const note = h("div", { class: `toast ${look}` }, h("span", {}, text));
  note.append(h("button", { type: "button", class: "push", "aria-label": "Close", on: { click: () => note.remove() } }, "×"));
  box.append(note);
  while (box.children.length > 4) box.firstChild.remove();
  return note;
}
