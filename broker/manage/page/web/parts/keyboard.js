// Keyboard shortcuts, which work unless a field has the focus or a dialog is open.

import { h } from "./dom.js";
import { show } from "./dialog.js";

const keys = []; // {pressed: "g q", label, group, press}
let prefix = "";
let prefixTimer = 0;

/** Register a shortcut of one key or two ("g q") until `signal` aborts. */
export function onKey(pressed, label, press, { group = "This screen", signal } = {}) {
  const entry = { pressed, label, group, press };
  keys.unshift(entry); // newest first, so that screens can override keys
  signal?.addEventListener("abort", () => keys.splice(keys.indexOf(entry), 1));
}

/** Show the shortcuts. */
export function showKeys() {
  const groups = new Map();
  for (const entry of [...keys].reverse()) {
    if (!groups.has(entry.group)) groups.set(entry.group, []);
    const entries = groups.get(entry.group);
    if (entry.label && !entries.some((other) => other.pressed === entry.pressed)) entries.push(entry);
  }
  const body = [...groups].filter(([, entries]) => entries.length).map(([group, entries]) => h(
    "div",
    { class: "stack tight" },
    h("h3", {}, group),
    h("div", { class: "key-list" }, entries.map((entry) => h("div", {}, h("span", {}, entry.label), h("span", {}, entry.pressed.split(" ").map((key) => h("kbd", {}, key)))))),
  ));
  show({ title: "Keyboard", body, wide: true });
}

/** Start to handle keys. */
export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return;
    const typing = event.target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
    if (typing) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const pressed = prefix ? `${prefix} ${event.key}` : event.key;
    prefix = "";
    clearTimeout(prefixTimer);
    document.body.classList.remove("keys-shown");
    const entry = keys.find((one) => one.pressed === pressed);
    if (entry) {
      event.preventDefault();
      entry.press(event);
    } else if (event.key === "g") {
      prefix = "g";
      document.body.classList.add("keys-shown");
      prefixTimer = setTimeout(() => {
        prefix = "";
        document.body.classList.remove("keys-shown");
      }, 1500);
    }
  });
}
