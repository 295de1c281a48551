// Dialogs: forms in a <dialog>, in which the browser keeps the focus, and which Escape closes.

import { button, h, put } from "./dom.js";

/**
 * Show a form, run `submit(values, form)` when it is submitted, and close it, or show the error.
 * Return a promise of true if the form was submitted, of false if it was closed.
 */
export function ask({ title, body = [], action = "OK", look = "primary", wide = false, submit }) {
  return new Promise((resolve) => {
    const error = h("div", { class: "error-text", role: "alert", hidden: true });
    const send = h("button", { type: "submit", class: `button ${look}` }, action);
    const form = h(
      "form",
      { method: "dialog", novalidate: false },
      h("h2", {}, title),
      body,
      error,
      h("div", { class: "dialog-foot" }, button("Cancel", "", () => dialog.close()), send),
    );
    const dialog = h("dialog", { class: wide ? "wide" : "", "aria-label": title }, form);
    let sent = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      send.disabled = true;
      error.hidden = true;
      try {
        await submit?.(valuesOf(form), form);
        sent = true;
        dialog.close();
      } catch (failed) {
        put(error, failed.message ?? String(failed));
        error.hidden = false;
      }
      send.disabled = false;
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(sent);
    });
    document.body.append(dialog);
    dialog.showModal();
    (form.querySelector("[autofocus]") ?? form.querySelector(".input, .select, .textarea") ?? send).focus();
  });
}

/** Show a text with a button that closes it. */
export function show({ title, body, wide = false }) {
  const close = button("Close", "primary", () => dialog.close());
  const form = h("form", { method: "dialog" }, h("h2", {}, title), body, h("div", { class: "dialog-foot" }, close));
  const dialog = h("dialog", { class: wide ? "wide" : "", "aria-label": title }, form);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
}

/** Return the values of a form's named controls: strings, and booleans of checkboxes. */
export function valuesOf(form) {
  const found = {};
  for (const control of form.elements) {
    if (!control.name) continue;
    if (control.type === "radio" && !control.checked) continue;
    found[control.name] = control.type === "checkbox" ? control.checked : control.value;
  }
  return found;
}
