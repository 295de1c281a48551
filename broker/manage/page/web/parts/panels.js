// Key figures, facts, meters, states.

import { h, put, say } from "./dom.js";
import { value as text } from "./format.js";

/** Return {element, set(name, text, note)} of a row of key figures. `all`: {name, label, k, unit, href, extra}. */
export function figures(all) {
  const shown = new Map();
  const element = h("div", { class: "figures" }, all.map((one) => {
    const value = h("span", {}, "–");
    const note = h("div", { class: "note" });
    shown.set(one.name, { value, note });
    const inside = [
      h("div", { class: "label" }, one.k && h("span", { class: `key k${one.k}` }), one.label),
      h("div", { class: "value" }, value, one.unit && h("span", { class: "unit" }, one.unit)),
      one.noted && note,
      one.extra,
    ];
    return one.href ? h("a", { class: "figure", href: one.href }, inside) : h("div", { class: "figure" }, inside);
  }));
  const set = (name, told, note) => {
    const one = shown.get(name);
    say(one.value, told);
    if (note !== undefined) say(one.note, note);
  };
  return { element, set };
}

/** Return a list of pairs of label and node or value. Pairs with null or "" are left out; undefined is unknown. */
export function facts(pairs) {
  const given = pairs.filter(([, fact]) => fact !== null && fact !== "");
  return h("dl", { class: "facts" }, given.flatMap(([label, fact]) => [h("dt", {}, label), h("dd", {}, fact instanceof Node ? fact : text(fact))]));
}

/** Return {element, set(share, text, note, state)} of a meter; `state` is "", "warn" or "bad". */
export function meter(label) {
  const told = h("span", {});
  const note = h("div", { class: "note" });
  const bar = h("i", {});
  const element = h("div", { class: "meter" }, h("span", { class: "label" }, label), told, h("div", { class: "track" }, bar), note);
  const set = (share, shown, noted = "", state = "") => {
    element.className = `meter ${state}`;
    bar.style.setProperty("--part", `${Math.min(100, Math.max(0, share * 100)).toFixed(1)}%`);
    say(told, shown);
    say(note, noted);
  };
  return { element, set };
}

/** Return a card with a heading. */
export function card(title, ...children) {
  const head = title && h("div", { class: "card-head" }, typeof title === "string" ? h("h2", {}, title) : title);
  return h("section", { class: "card" }, head, children);
}

/** Return a notice: its title says what is wrong, the lines what to do. `look`: "bad", "warn" or "plain". */
export function notice(look, title, ...lines) {
  return h("div", { class: `notice ${look}`, role: look === "plain" ? "note" : "alert" }, h("strong", {}, title), lines.filter(Boolean).map((line) => h("span", {}, line)));
}

/** Return a state with a coloured dot. */
export function state(name) {
  const looks = { running: "good", flow: "warn", idle: "idle", paused: "warn", blocked: "bad", blocking: "warn", down: "bad", stopped: "bad", closing: "warn" };
  return h("span", { class: `state ${looks[name] ?? "idle"}` }, text(name));
}

/** Return tabs. `all`: [{name, label, open}]; `open(box, signal)` draws into the box until `signal` aborts. */
export function tabs(view, all, { key = "tab" } = {}) {
  const bar = h("div", { class: "tabs", role: "tablist" });
  const box = h("div", { class: "stack", role: "tabpanel" });
  let end = null;
  let current = "";
  const counts = new Map();
  const choose = (name) => {
    const one = all.find((tab) => tab.name === name) ?? all[0];
    if (current === one.name) return;
    current = one.name;
    end?.abort();
    end = new AbortController();
    view.keep({ [key]: one === all[0] ? "" : one.name });
    for (const pressed of bar.children) pressed.setAttribute("aria-selected", String(pressed.dataset.name === one.name));
    put(box);
    one.open(box, end.signal);
  };
  all.forEach((one, at) => {
    const counted = h("span", { class: "count" });
    counts.set(one.name, counted);
    bar.append(h("button", { type: "button", role: "tab", "aria-selected": "false", data: { name: one.name }, on: { click: () => choose(one.name) } }, one.label, counted));
    view.onKey(String(at + 1), one.label, () => choose(one.name));
  });
  view.signal.addEventListener("abort", () => end?.abort());
  return {
    element: h("div", { class: "stack" }, bar, box),
    choose,
    start: () => choose(view.query[key] ?? all[0].name),
    count: (name, told) => say(counts.get(name), told),
  };
}

/** Return badges for the features of a queue or exchange, such as durable, and for its arguments. */
export function features(row) {
  const marks = [];
  const add = (label, title, look = "") => marks.push(h("span", { class: `badge ${look}`, title }, label));
  if (row.durable) add("D", "durable: survives a restart");
  if (row.auto_delete) add("AD", "auto-delete: deleted with its last consumer or binding");
  if (row.exclusive) add("Excl", "exclusive: belongs to one connection");
  if (row.internal) add("I", "internal: clients cannot publish to it");
  const known = { "x-message-ttl": "TTL", "x-expires": "Exp", "x-max-length": "Lim", "x-max-length-bytes": "LimB", "x-max-priority": "Pri", "x-dead-letter-exchange": "DLX", "x-dead-letter-routing-key": "DLK", "x-single-active-consumer": "SAC", "x-overflow": "Ovfl", "x-delivery-limit": "DL", "x-message-deduplication": "Dedup", "alternate-exchange": "AE" };
  for (const [name, set] of Object.entries(row.arguments ?? {})) add(known[name] ?? name, `${name}: ${text(set)}`);
  if (row.policy) add(row.policy, `policy: ${row.policy}`, "accent");
  if (row.operator_policy) add(row.operator_policy, `operator policy: ${row.operator_policy}`, "accent");
  return h("span", { class: "badges" }, marks);
}
