// Messages: a list, and the selected message with its body formatted, raw or in hex.

import { h, put } from "./dom.js";
import { bytes, count, moment, value, yesNo } from "./format.js";
import { segments } from "./form.js";
import { facts } from "./panels.js";

const HEX_MAX = 4096;
const PRETTY_MAX = 200_000;

/** Return {element, update(messages)} of a list and the selected message. Shapes: messages are as in answers of /get. */
export function messageList({ empty }) {
  const list = h("div", { class: "message-list", role: "listbox", "aria-label": "Messages" });
  const whole = h("div", { class: "message" });
  const box = h("div", { class: "messages" }, list, whole);
  const nothing = h("div", { class: "card" }, h("div", { class: "empty" }, h("strong", {}, empty)));
  const element = h("div", {}, nothing);
  let look = "";
  const choose = (message, row) => {
    for (const other of list.children) other.setAttribute("aria-selected", String(other === row));
    put(whole, messageView(message, look, (chosen) => {
      look = chosen;
    }));
  };
  const update = (messages) => {
    put(element, messages.length ? box : nothing);
    put(list, messages.map((message) => {
      const row = h(
        "button",
        { type: "button", role: "option", "aria-selected": "false" },
        h("span", { class: "key-text" }, message.routing_key || "(no routing key)"),
        h("span", { class: "size" }, bytes(message.payload_bytes)),
        h("span", { class: "preview" }, preview(message)),
        message.redelivered ? h("span", { class: "badge warn" }, "redelivered") : h("span", {}),
      );
      row.addEventListener("click", () => choose(message, row));
      return row;
    }));
    if (messages.length) choose(messages[0], list.firstChild);
  };
  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!by) return;
    const rows = [...list.children];
    const next = rows[rows.indexOf(document.activeElement) + by];
    next?.focus();
    next?.click();
    event.preventDefault();
    event.stopPropagation();
  });
  return { element, update };
}

/** Return the nodes of a message. `look` is the format of the body, "" for the best one; `chosen` is called with a new one. */
export function messageView(message, look, chosen) {
  const { headers, timestamp, ...properties } = message.properties ?? {};
  const content = contentOf(message);
  const body = h("div", {});
  const looks = [content.pretty && ["pretty", "Pretty"], content.text !== null && ["raw", "Raw"], ["hex", "Hex"]].filter(Boolean);
  let current = looks.some(([name]) => name === look) ? look : looks[0][0];
  const show = () => put(body, bodyBox(content, current));
  show();
  const cut = content.bytes.length < message.payload_bytes;
  return [
    facts([
      ["Exchange", message.exchange || "(default exchange)"],
      ["Routing key", h("code", {}, message.routing_key ?? "")],
      ["Message id", message.id === undefined ? null : count(message.id)],
      ["Redelivered", yesNo(message.redelivered)],
      ["Published", timestamp === undefined ? null : typeof timestamp === "number" ? moment(timestamp * 1000) : timestamp],
      ...Object.entries(properties).map(([name, set]) => [name.replaceAll("_", " "), name === "delivery_mode" ? (set === 2 ? "2, persistent" : "1, transient") : set]),
    ]),
    headers && Object.keys(headers).length ? h("div", { class: "stack tight" }, h("h3", {}, "Headers"), facts(Object.entries(headers).map(([name, set]) => [name, typeof set === "object" && set !== null ? h("code", {}, value(set)) : set]))) : null,
    h(
      "div",
      { class: "stack tight" },
      h("div", { class: "row" }, h("h3", {}, "Body"), h("span", { class: "faint small" }, `${bytes(message.payload_bytes)}${cut ? `, the first ${bytes(content.bytes.length)} shown` : ""}`), h("span", { class: "push" }), segments("Show the body", looks, current, (name) => {
        current = name;
        chosen?.(name);
        show();
      })),
      body,
    ),
  ];
}

function contentOf(message) {
  if (message.payload_encoding === "base64") {
    const binary = atob(message.payload ?? "");
    return { text: null, pretty: null, bytes: Uint8Array.from(binary, (sign) => sign.charCodeAt(0)) };
  }
  const text = message.payload ?? "";
  let pretty = null;
  if (text.length < PRETTY_MAX && /^\s*[[{]/.test(text)) {
    try {
      pretty = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // not JSON: only shown raw
    }
  }
  return { text, pretty, bytes: new TextEncoder().encode(text) };
}

function preview(message) {
  return message.payload_encoding === "base64" ? "binary" : (message.payload ?? "").slice(0, 160).replace(/\s+/g, " ");
}

function bodyBox(content, look) {
  if (look === "pretty") return h("pre", { class: "body-box", tabindex: 0 }, coloured(content.pretty));
  if (look === "raw") return h("pre", { class: "body-box", tabindex: 0 }, content.text === "" ? h("span", { class: "faint" }, "empty") : content.text);
  return h("pre", { class: "body-box hex", tabindex: 0 }, hexDump(content.bytes));
}

/** Return indented JSON as coloured nodes. */
function coloured(text) {
  const marks = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)|([{}[\],])/g;
  const found = [];
  let from = 0;
  for (const match of text.matchAll(marks)) {
    found.push(text.slice(from, match.index));
    const [whole, string, colon, digits, word] = match;
    if (string && colon) found.push(h("span", { class: "j-key" }, string), colon);
    else found.push(h("span", { class: string ? "j-string" : digits ? "j-number" : word ? "j-word" : "j-mark" }, whole));
    from = match.index + whole.length;
  }
  return [...found, text.slice(from)].filter((part) => part !== "");
}

function hexDump(all) {
  const lines = [];
  const shown = all.subarray(0, HEX_MAX);
  for (let at = 0; at < shown.length; at += 16) {
    const part = [...shown.subarray(at, at + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(h("span", { class: "hex-at" }, at.toString(16).padStart(6, "0")), `  ${hex}  `, h("span", { class: "hex-text" }, text), "\n");
  }
  if (all.length > HEX_MAX) lines.push(h("span", { class: "faint" }, `… ${count(all.length - HEX_MAX)} bytes more`));
  return lines.length ? lines : [h("span", { class: "faint" }, "empty")];
}
