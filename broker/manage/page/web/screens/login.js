// The login form, shown to users without a session.

import { h, mark, put } from "../parts/dom.js";
import { change } from "../parts/api.js";
import { field } from "../parts/form.js";
import { valuesOf } from "../parts/dialog.js";

const REASONS = {
  "Login failed": "The user name or the password is wrong.",
  "Not management user": "This user has no tag for this page: management, policymaker, monitoring or administrator.",
  "User can only log in via localhost": "This user may log in only on the machine of the broker itself. Log in there, or as another user.",
  "Too many failed logins from this address": "Too many logins from this address have failed. Wait for a minute.",
};

/** Show the form; `done` runs once the broker has accepted a login. */
export function login(done) {
  document.title = "Log in · SlotMQ";
  const error = h("div", { class: "error-text", role: "alert", hidden: true });
  const send = h("button", { type: "submit", class: "button primary" }, "Log in");
  const form = h(
    "form",
    {},
    h("div", { class: "brand" }, mark(), "SlotMQ"),
    field("User", "username", { autocomplete: "username", required: true }),
    field("Password", "password", { type: "password", autocomplete: "current-password", required: true }),
    error,
    send,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    error.hidden = true;
    try {
      await change("POST", ["session"], valuesOf(form));
      done();
    } catch (failed) {
      put(error, REASONS[failed.message] ?? failed.message);
      error.hidden = false;
      form.elements.password.select();
    }
    send.disabled = false;
  });
  put(document.body, h("div", { class: "login" }, form));
  form.elements.username.focus();
}
