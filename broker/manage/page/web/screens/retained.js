// Retained messages: the last message of each MQTT topic, found by an MQTT filter.

import { h, put } from "../parts/dom.js";
import { change, get } from "../parts/api.js";
import { ask, show } from "../parts/dialog.js";
import { bytes, count, duration, many } from "../parts/format.js";
import { messageView } from "../parts/message.js";
import { listed } from "../parts/rows.js";
import { reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";

export const retained = { path: "retained", title: "Retained", key: "m", group: "Topology", offered: () => reader.parts.mqtt, open };

const LIMIT = 1000;
const PREVIEW_BYTES = 120;
const WHOLE_BYTES = 262_144;

function open(view) {
  const words = ["slotmq", "retained", reader.vhost || "/"];
  const told = h("p", { class: "soft small" });
  const filter = h("input", { class: "input", type: "search", name: "filter", placeholder: "home/+/config or home/#", "aria-label": "MQTT filter", spellcheck: "false", autocomplete: "off", value: view.query.filter ?? "", on: { change: () => shown.refresh().catch((error) => put(told, error.message)) } });
  const load = async (signal) => {
    const found = await get(words, { filter: filter.value || "#", limit: LIMIT, truncate: PREVIEW_BYTES }, signal);
    put(told, `Vhost ${words[2]} retains ${many(found.messages, "message")}, ${bytes(found.bytes)}.${found.truncated ? ` The filter matches more than ${count(LIMIT)}, of which some are shown.` : ""}`);
    return found.rows;
  };
  const shown = table(view, {
    noun: "topic",
    filter: false,
    sort: "topic",
    tools: [h("span", { class: "filter" }, filter)],
    empty: "Nothing is retained here",
    emptyHint: "MQTT clients retain messages with a flag, AMQP publishers to amq.topic with the header x-mqtt-retain.",
    id: (row) => row.topic,
    columns: [
      { key: "topic", label: "Topic", look: "name", sort: "topic" },
      { key: "body", label: "Payload", look: "text", rank: 2, value: (row) => (row.body_encoding === "utf-8" ? `${row.body}${row.body_complete ? "" : "…"}` : "binary") },
      { key: "bytes", label: "Size", look: "number", sort: "bytes", show: bytes },
      { key: "age_ms", label: "Age", look: "number", sort: "age_ms", rank: 2, show: duration },
      { key: "expires_in_ms", label: "Expires in", look: "number", sort: "expires_in_ms", rank: 2, show: duration },
    ],
    source: listed(load, ["topic"]),
    menu: (row) => [
      { label: "Show", press: () => showing(words, row) },
      null,
      { label: "Delete…", look: "bad", press: async () => (await deleting(words, [row])) && shown.refresh() },
    ],
    picks: [{ label: "Delete…", look: "bad", press: (rows) => deleting(words, rows) }],
  });
  view.show(told, shown.element);
}

async function showing(words, { topic }) {
  const [row] = (await get(words, { filter: topic, truncate: WHOLE_BYTES })).rows;
  if (!row) return toast(`${topic} is no longer retained`);
  const message = { exchange: "amq.topic", routing_key: row.routing_key, redelivered: false, properties: row.properties, payload: row.body, payload_bytes: row.body_bytes, payload_encoding: row.body_encoding === "utf-8" ? "string" : "base64" };
  return show({ title: topic, body: messageView(message, ""), wide: true });
}

/** Delete the retained messages of topics after a confirmation; return true if it was done. */
function deleting(words, rows) {
  return ask({
    title: rows.length === 1 ? `Delete the retained message of ${rows[0].topic}?` : `Delete the retained messages of ${count(rows.length)} topics?`,
    body: [h("p", {}, "Later subscriptions receive nothing. Clients that are subscribed now are not notified.")],
    action: "Delete",
    look: "danger",
    submit: async () => {
      for (const row of rows) await change("DELETE", words, undefined, { query: { filter: row.topic } });
      toast(`${many(rows.length, "message")} deleted`);
    },
  });
}
