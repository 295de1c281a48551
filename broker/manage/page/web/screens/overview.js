// The broker at a glance: alarms and advice, rates, depth, memory and disk, and the last hour.

import { button, h, put } from "../parts/dom.js";
import { get } from "../parts/api.js";
import { chart, spark } from "../parts/chart.js";
import { draining, mayDrain } from "../parts/draining.js";
import { bytes, count, many, rate, short } from "../parts/format.js";
import { segments } from "../parts/form.js";
import { History, SPANS } from "../parts/history.js";
import { card, facts, figures, meter, notice } from "../parts/panels.js";
import { listed } from "../parts/rows.js";
import { mayAs } from "../parts/reader.js";
import { table } from "../parts/table.js";

const NAMES = ["publish", "deliver_get", "ack", "redeliver", "messages_ready", "messages_unacknowledged", "mem_used"];
const SPARK_MS = 600_000;

const RATES = [
  { name: "publish", label: "Published", k: 1 },
  { name: "deliver_get", label: "Delivered", k: 2 },
  { name: "ack", label: "Acknowledged", k: 3 },
  { name: "redeliver", label: "Redelivered", k: 4 },
];
const DEPTH = [
  { name: "messages_ready", label: "Ready", k: 1 },
  { name: "messages_unacknowledged", label: "Unacked", k: 4 },
];

export const overview = { path: "", title: "Overview", key: "o", open };

async function open(view) {
  const history = new History(NAMES);
  let span = Number(view.query.span) || 600_000;
  const alarms = h("div", { class: "stack tight", hidden: true });
  const sparks = Object.fromEntries(["publish", "deliver_get", "ack", "messages_ready", "messages_unacknowledged"].map((name) => [name, spark({ publish: 1, deliver_get: 2, ack: 3, messages_ready: 1, messages_unacknowledged: 4 }[name])]));
  const shown = figures([
    { name: "publish", label: "Published", k: 1, unit: "/s", extra: sparks.publish },
    { name: "deliver_get", label: "Delivered", k: 2, unit: "/s", extra: sparks.deliver_get },
    { name: "ack", label: "Acknowledged", k: 3, unit: "/s", extra: sparks.ack },
    { name: "messages_ready", label: "Ready", k: 1, extra: sparks.messages_ready, href: "#/queues?sort=messages_ready&desc=1" },
    { name: "messages_unacknowledged", label: "Unacked", k: 4, extra: sparks.messages_unacknowledged, href: "#/queues?sort=messages_unacknowledged&desc=1" },
  ]);
  const totals = figures([
    { name: "connections", label: "Connections", href: "#/connections" },
    { name: "channels", label: "Channels", href: "#/channels" },
    { name: "consumers", label: "Consumers" },
    { name: "queues", label: "Queues", href: "#/queues" },
    { name: "exchanges", label: "Exchanges", href: "#/exchanges" },
  ]);
  const draw = () => {
    rates.update(history.at, history.values, span);
    depth.update(history.at, history.values, span);
    for (const [name, line] of Object.entries(sparks)) line.update(history.last(name, SPARK_MS));
  };
  const choice = segments("Span of the charts", SPANS, String(span), (chosen) => {
    span = Number(chosen);
    view.keep({ span: span === 600_000 ? "" : span });
    draw();
  });
  const rates = chart({ title: "Messages per second", series: RATES, format: rate, area: false, head: choice });
  const depth = chart({ title: "Messages in queues", series: DEPTH, format: short });
  const node = nodePanel();
  view.show(alarms, shown.element, h("div", { class: "columns-2" }, rates.element, depth.element), totals.element, node.element);

  view.onLive("overview", (told) => {
    for (const name of ["publish", "deliver_get", "ack"]) shown.set(name, rate(told[name]));
    for (const name of ["messages_ready", "messages_unacknowledged"]) shown.set(name, short(told[name]));
    for (const name of ["connections", "channels", "consumers", "queues", "exchanges"]) totals.set(name, count(told[name]));
    showAlarms(alarms, told.alarms, told.blocked);
    node.show(told);
    history.add(told.at, told);
    draw();
  });
  if (!mayAs("monitoring")) {
    node.element.remove(); // only for users who monitor the broker
    return;
  }
  view.root.append(await details(view));
  history.load(await get(["history"], {}, view.signal));
  draw();
}

function showAlarms(box, alarms, blocked) {
  const stamp = JSON.stringify([alarms, blocked]);
  if (box.stamp === stamp) return;
  box.stamp = stamp;
  box.hidden = alarms.length === 0;
  put(box, alarms.map((alarm) => notice("bad", `The ${alarm.kind} alarm is on: publishers wait${blocked ? `, ${many(blocked, "connection")} now` : ""}`, ...adviceOn(alarm))));
}

/** Return what an alarm means and the broker's advice, each as a sentence. */
function adviceOn({ kind, value_bytes, limit_bytes, setting, reason, advice }) {
  const measured = {
    memory: `The broker used ${bytes(value_bytes)} when the alarm was raised; the limit is ${bytes(limit_bytes)} (${setting}).`,
    disk: `${bytes(value_bytes)} were free when the alarm was raised; ${bytes(limit_bytes)} must stay free (${setting}).`,
  };
  const todo = advice?.replace(/^publishers wait: /, "");
  return [limit_bytes ? measured[kind] : reason, todo && `To end it: ${todo}. Consumers continue meanwhile.`];
}

function nodePanel() {
  const memory = meter("Memory");
  const disk = meter("Disk space left");
  const clients = meter("Client connections");
  const element = h("div", { class: "columns-3" }, ...[memory, disk, clients].map((one) => h("section", { class: "card" }, one.element)));
  const show = (told) => {
    const used = told.mem_limit ? told.mem_used / told.mem_limit : 0;
    memory.set(used, `${bytes(told.mem_used)} of ${bytes(told.mem_limit)}`, "At the limit publishers wait.", used >= 1 ? "bad" : used > 0.85 ? "warn" : "");
    // the bar is full when the free space has reached the limit
    const near = told.disk_free > 0 ? Math.min(1, told.disk_free_limit / told.disk_free) : 1;
    disk.set(near, bytes(told.disk_free), `Below ${bytes(told.disk_free_limit)} publishers wait.`, near >= 1 ? "bad" : near > 0.7 ? "warn" : "");
    const taken = told.connections_max ? told.connections / told.connections_max : 0;
    clients.set(taken, told.connections_max ? `${count(told.connections)} of ${count(told.connections_max)}` : count(told.connections), told.blocked ? `${count(told.blocked)} of them blocked.` : "At the limit new clients are refused.", taken > 0.95 ? "bad" : taken > 0.8 ? "warn" : "");
  };
  return { element, show };
}

async function details(view) {
  const told = await get(["overview"], { disable_stats: "true" }, view.signal);
  const ports = table(view, {
    noun: "listener",
    filter: false,
    live: false,
    id: (row) => `${row.protocol} ${row.ip_address}:${row.port}`,
    columns: [
      { key: "protocol", label: "Protocol" },
      { key: "ip_address", label: "Address" },
      { key: "port", label: "Port", look: "number", show: (port) => String(port) },
    ],
    source: listed(async () => told.listeners),
  });
  const about = facts([
    ["Node", told.node],
    ["Cluster", told.cluster_name === told.node ? "" : told.cluster_name],
    ["Version", `${told.product_name ?? "SlotMQ"} ${told.product_version ?? ""}`],
    ["Compatible with", told.rabbitmq_version ? `RabbitMQ's HTTP API ${told.rabbitmq_version}` : ""],
  ]);
  const drain = mayDrain() && button("Drain all clients…", "quiet bad", () => draining("Drain all clients?", "Clients receive no more messages. Each can settle its messages, and is then closed; clients that connect meanwhile are drained, too. In a cluster these are the clients of this node."));
  return h("div", { class: "columns-2" }, card("Broker", h("div", {}, about, drain)), card("Listeners", ports.frame));
}
