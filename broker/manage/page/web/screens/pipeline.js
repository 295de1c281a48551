// The pipeline: taps, the cursors of their readers with their lags, and ØMQ bridges.

import { button, h, icon, put, say } from "../parts/dom.js";
import { change, get } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { check, field, number } from "../parts/form.js";
import { bytes, count, duration, exchangeName, many } from "../parts/format.js";
import { menu } from "../parts/menu.js";
import { quantity } from "../parts/quantity.js";
import { card, facts, figures } from "../parts/panels.js";
import { listed } from "../parts/rows.js";
import { mayAs, reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";
import { pattern } from "./bindings.js";
import { vhostField } from "./exchanges.js";

export const pipeline = { path: "pipeline", title: "Pipeline", key: "l", group: "Broker", open };

const LATE_S = 600; // a cursor with a larger lag is marked

async function open(view) {
  const cards = h("div", { class: "stack" });
  const shown = figures([
    { name: "taps", label: "Taps" },
    { name: "slots", label: "Slot files" },
    { name: "bytes", label: "On disk" },
    { name: "waiting", label: "Not sealed yet" },
    { name: "lag", label: "Slowest cursor" },
  ]);
  let drawn = new Map(); // tap -> its card
  const show = (taps) => {
    const sum = (name) => taps.reduce((all, tap) => all + tap[name], 0);
    const slowest = Math.max(0, ...taps.flatMap((tap) => tap.cursors.map((cursor) => cursor.lag_s)));
    shown.set("taps", count(taps.length));
    shown.set("slots", count(sum("slots")));
    shown.set("bytes", bytes(sum("bytes")));
    shown.set("waiting", count(sum("waiting")));
    shown.set("lag", taps.some((tap) => tap.cursors.length) ? duration(slowest * 1000) : "–");
    const kept = new Map(taps.map((tap) => {
      const id = `${tap.vhost} ${tap.name}`;
      const one = drawn.get(id) ?? tapCard(refresh);
      one.update(tap);
      return [id, one];
    }));
    const changed = kept.size !== drawn.size || [...kept.keys()].some((id) => !drawn.has(id));
    drawn = kept;
    if (changed || !cards.firstChild) put(cards, kept.size ? [...kept.values()].map((one) => one.element) : h("div", { class: "card" }, h("div", { class: "empty" }, h("strong", {}, "No taps"), h("span", {}, "A tap keeps the messages of an exchange in slot files, for Spark jobs, archives and other readers."))));
  };
  async function refresh() {
    const { taps } = await get(["slotmq", "pipeline"], {}, view.signal);
    show(reader.vhost ? taps.filter((tap) => tap.vhost === reader.vhost) : taps);
  }
  const add = mayAs("administrator") && button("Add tap…", "", async () => (await adding()) && refresh());
  view.show(h("div", { class: "row" }, h("h2", {}, "Taps and their readers"), h("span", { class: "push" }), add), shown.element, cards);
  await refresh();
  if (reader.parts.zmq && mayAs("monitoring")) view.root.append(h("h2", {}, "ØMQ bridges"), bridges(view).element);
  view.onTick(refresh);
}

/** Return {element, update(tap)} of one tap. */
function tapCard(refresh) {
  const head = h("div", { class: "card-head" });
  const track = h("div", {});
  const cursors = h("div", { class: "stack tight" });
  const about = h("div", {});
  const element = card(null, head, track, cursors, about);
  let stamp = "";
  const update = (tap) => {
    const told = JSON.stringify(tap);
    if (told === stamp) return;
    stamp = told;
    const mine = mayAs("administrator");
    put(
      head,
      h("h2", {}, tap.name),
      tap.removed ? h("span", { class: "badge warn" }, "removed") : h("span", { class: "soft" }, exchangeName(tap.exchange), " ", pattern(tap.pattern)),
      !tap.removed && !tap.listens && h("span", { class: "badge bad", title: "its exchange does not exist" }, "inactive"),
      reader.vhosts.length > 1 && h("span", { class: "faint" }, tap.vhost),
      h("span", { class: "push" }),
      mine && !tap.removed && button("Seal now", "small", async () => { await sealing(tap); await refresh(); }),
      mine && menu(`Actions of ${tap.name}`, icon("more"), [
        !tap.removed && { label: "Add a cursor…", press: async () => (await addingCursor(tap)) && refresh() },
        { label: "Remove…", look: "bad", press: async () => (await removing(tap)) && refresh() },
      ].filter(Boolean), "quiet icon small"),
    );
    put(track, seals(tap));
    put(cursors, tap.cursors.length ? tap.cursors.map((cursor) => cursorLine(tap, cursor, refresh)) : h("span", { class: "faint" }, "No cursor: only the caps limit the slot files."));
    put(about, facts([
      ["Messages in files", `${count(tap.messages)} in ${many(tap.slots, "slot")}, ${bytes(tap.bytes)}`],
      ["Not sealed yet", count(tap.waiting)],
      ["Kept at most", [tap.max_bytes && bytes(tap.max_bytes), tap.max_age_ms && duration(tap.max_age_ms)].filter(Boolean).join(", ")],
    ]));
  };
  return { element, update };
}

/** Return the axis of a tap's seals with a mark for each cursor. */
function seals(tap) {
  if (tap.first_seal === null) return null;
  const first = tap.first_seal;
  const span = Math.max(1, tap.last_seal - first + 1);
  const marks = tap.cursors.map((cursor) => {
    const mark = h("i", { class: `seal-mark ${cursor.lag_s > LATE_S ? "late" : ""}`, title: `${cursor.name}: seal ${count(cursor.seal)}` });
    mark.style.setProperty("--part", `${Math.min(100, Math.max(0, ((cursor.seal - first + 1) / span) * 100)).toFixed(2)}%`);
    return mark;
  });
  return h("div", { class: "seals" }, h("div", { class: "seal-track" }, marks), h("div", { class: "strip-ends" }, h("span", {}, `seal ${count(first)}`), h("span", {}, `seal ${count(tap.last_seal)}`)));
}

function cursorLine(tap, cursor, refresh) {
  const behind = cursor.lag_slots > 0;
  const late = cursor.lag_s > LATE_S;
  const path = ["slotmq", "pipeline", "taps", tap.vhost, tap.name, "cursors", cursor.name];
  return h(
    "div",
    { class: "row cursor" },
    h("span", { class: `state ${late ? "bad" : behind ? "warn" : "good"}` }, h("span", { class: "strong" }, cursor.name)),
    h("span", { class: "faint at-seal" }, `at seal ${count(cursor.seal)}`),
    say(h("span", { class: `behind ${behind ? "" : "faint"}` }), behind ? `${many(cursor.lag_slots, "slot")}, ${many(cursor.lag_messages, "message")}, ${bytes(cursor.lag_bytes)}, ${duration(cursor.lag_s * 1000)} behind` : "up to date"),
    mayAs("administrator") && menu(`Actions of ${cursor.name}`, icon("more"), [
      { label: "Set the position…", press: async () => (await setting(tap, cursor, path)) && refresh() },
      { label: "Remove…", look: "bad", press: async () => (await removingCursor(cursor, path)) && refresh() },
    ], "quiet icon small"),
  );
}

async function sealing(tap) {
  const told = await change("POST", ["slotmq", "pipeline", "taps", tap.vhost, tap.name, "seal"]);
  toast(`Sealed: the last seal is ${count(told.last_seal)}`);
}

function adding() {
  return ask({
    title: "Add a tap",
    action: "Add tap",
    body: [
      h("p", {}, "A tap keeps every message of an exchange whose routing key matches a topic pattern, independent of bound queues."),
      h("div", { class: "fields" }, field("Name", "name", { required: true, maxlength: 200 }), field("Exchange", "exchange", { placeholder: "empty: the default exchange" }), field("Pattern", "pattern", { required: true, value: "#" }), vhostField()),
      h("div", { class: "fields" }, field("Cursor", "cursor", { placeholder: "archive" }, "A reader for which messages are kept."), field("At most", "max_bytes", { placeholder: "10GB" }, "Size of its slot files."), field("For at most", "max_age", { placeholder: "7d" }, "Age of its slot files.")),
    ],
    submit: async (form) => {
      const body = { exchange: form.exchange, pattern: form.pattern, cursors: form.cursor ? [form.cursor] : [] };
      if (form.max_bytes) body.max_bytes = quantity(form.max_bytes, "bytes", "At most");
      if (form.max_age) body.max_age_ms = quantity(form.max_age, "ms", "For at most");
      await change("PUT", ["slotmq", "pipeline", "taps", form.vhost ?? reader.vhosts[0], form.name], body);
      toast(`Tap ${form.name} added`);
    },
  });
}

function removing(tap) {
  return ask({
    title: `Remove tap ${tap.name}?`,
    body: [h("p", {}, "It keeps no more messages. Its slot files stay until its cursors have passed them."), check(`Drop its ${many(tap.slots, "slot file")} and cursors at once`, "drop")],
    action: "Remove",
    look: "danger",
    submit: async ({ drop }) => {
      await change("DELETE", ["slotmq", "pipeline", "taps", tap.vhost, tap.name], undefined, { query: { drop: drop ? "true" : "" } });
      toast(`Tap ${tap.name} removed`);
    },
  });
}

function addingCursor(tap) {
  return ask({
    title: `Add a cursor to ${tap.name}`,
    body: [h("div", { class: "fields" }, field("Name", "name", { required: true, placeholder: "archive" }), number("Has passed seal", "seal", { value: 0 }, "0 keeps all existing files."))],
    action: "Add cursor",
    submit: async ({ name, seal }) => {
      await change("PUT", ["slotmq", "pipeline", "taps", tap.vhost, tap.name, "cursors", name], { seal: Number(seal) });
      toast(`Cursor ${name} added`);
    },
  });
}

function setting(tap, cursor, path) {
  return ask({
    title: `Set the position of ${cursor.name}`,
    body: [h("p", {}, "A reader may start again from an older seal. Files that were deleted behind the cursor are not restored."), number("Has passed seal", "seal", { value: cursor.seal, max: tap.last_seal ?? 0 })],
    action: "Set",
    submit: async ({ seal }) => {
      await change("PUT", path, { seal: Number(seal), reset: true });
      toast(`${cursor.name} is at seal ${seal}`);
    },
  });
}

function removingCursor(cursor, path) {
  return ask({
    title: `Remove cursor ${cursor.name}?`,
    body: [h("p", {}, "No more files are kept for this reader.")],
    action: "Remove",
    look: "danger",
    submit: async () => {
      await change("DELETE", path);
      toast(`Cursor ${cursor.name} removed`);
    },
  });
}

function bridges(view) {
  return table(view, {
    noun: "bridge",
    filter: false,
    prefix: "z",
    id: (row) => `${row.kind} ${row.endpoint} ${row.exchange}`,
    columns: [
      { key: "endpoint", label: "Endpoint", look: "name" },
      { key: "kind", label: "Kind" },
      { key: "exchange", label: "Exchange", show: exchangeName },
      { key: "state", label: "State", value: (row) => [row.state, row.problem], show: ([state, problem]) => h("span", { class: `state ${state === "up" ? "good" : "bad"}`, title: problem ?? "" }, problem || state) },
      { key: "peers", label: "Peers", look: "number", show: count },
      { key: "subscriptions", label: "Subscriptions", look: "number", rank: 2, show: count },
      { key: "messages", label: "Messages", look: "number", show: count },
      { key: "waiting", label: "Waiting", look: "number", rank: 2, value: (row) => (row.kind === "subscribe" ? null : row.waiting), show: count },
      { key: "lost", label: "Lost", look: "number", show: count },
    ],
    source: listed((signal) => get(["slotmq", "zmq"], {}, signal)),
  });
}
