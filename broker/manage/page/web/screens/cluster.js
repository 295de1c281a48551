// The nodes that share a PostgreSQL with this broker: their leases, messages, and how far behind each is.

import { h, put, say } from "../parts/dom.js";
import { change, get } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { count, duration, many } from "../parts/format.js";
import { card, facts, figures, notice } from "../parts/panels.js";
import { listed } from "../parts/rows.js";
import { mayAs, reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";

export const cluster = { path: "cluster", title: "Cluster", key: "n", group: "Broker", needs: "monitoring", offered: () => reader.parts.cluster, open };

const LOOKS = { alive: "good", joined: "good", silent: "bad", unknown: "warn" };

async function open(view) {
  let told = await get(["slotmq", "cluster"], {}, view.signal);
  const away = h("div", { hidden: true });
  const shown = figures([
    { name: "nodes", label: "Nodes" },
    { name: "held", label: "Messages held" },
    { name: "clients", label: "Clients" },
    { name: "database", label: "Database" },
    { name: "topology", label: "Topology" },
    { name: "beat", label: "Last heartbeat" },
  ]);
  const about = h("div", {});
  const nodes = table(view, {
    noun: "node",
    filter: false,
    sort: "node",
    id: (row) => `${row.node} ${row.epoch}`,
    columns: [
      { key: "node", label: "Node", look: "name", sort: "node", value: (row) => [row.node, row.node === told.node], show: ([name, own]) => [name, own && h("span", { class: "faint" }, " · this one")] },
      { key: "state", label: "State", sort: "state", show: (name) => h("span", { class: `state ${LOOKS[name] ?? "idle"}` }, name) },
      { key: "lease", label: "Lease left", value: (row) => leaseOf(row, told), show: leaseBar },
      { key: "held", label: "Holds", look: "number", sort: "held", show: count },
      { key: "slots", label: "Slots", look: "number", sort: "slots", rank: 2, show: count },
      { key: "clients", label: "Clients", look: "number", sort: "clients", show: count },
      { key: "topology_lag", label: "Behind", look: "number", rank: 2, value: (row) => newest(told) - row.topology, show: (behind) => (behind ? many(behind, "change") : "0") },
      { key: "epoch", label: "Epoch", look: "number", rank: 3, show: String },
      { key: "version", label: "Version", rank: 3 },
      { key: "url", label: "Clients connect to", look: "text", rank: 3 },
    ],
    source: listed(async (signal) => {
      told = await get(["slotmq", "cluster"], {}, signal);
      show();
      return told.nodes;
    }, ["node"]),
    menu: mayAs("administrator") ? (row) => (row.node === told.node ? [{ label: "This node: stop it to leave", press: () => {} }] : [{ label: "Count out…", look: "bad", press: async () => (await countingOut(row)) && nodes.refresh() }]) : undefined,
  });

  function show() {
    away.hidden = !told.database_trouble;
    if (told.database_ms === null) put(away, notice("bad", "This node does not reach the database", told.reason ?? "", "It delivers nothing meanwhile; clients stay connected."));
    else if (told.database_trouble) put(away, notice("bad", "The database answers with errors", told.database_trouble, "Publishers wait meanwhile; clients stay connected."));
    const sum = (name) => told.nodes.reduce((all, row) => all + row[name], 0);
    shown.set("nodes", count(told.nodes.length));
    shown.set("held", count(sum("held")));
    shown.set("clients", count(sum("clients")));
    shown.set("database", told.database_ms === null ? "away" : told.database_trouble ? "fails" : duration(told.database_ms));
    shown.set("topology", count(told.topology));
    shown.set("beat", told.beat_age_ms === null ? "–" : duration(told.beat_age_ms));
    const stamp = JSON.stringify([told.node, told.state, told.epoch, told.database, told.schema, told.lease_ms]);
    if (about.stamp === stamp) return;
    about.stamp = stamp;
    put(about, card("This node", facts([["Name", told.node], ["State", told.state], ["Epoch", String(told.epoch)], ["Database", told.database], ["Schema", told.schema], ["Lease", duration(told.lease_ms)]])));
  }

  show();
  view.show(away, shown.element, nodes.element, about);
}

function newest(told) {
  return Math.max(...told.nodes.map((row) => row.topology), told.topology);
}

/** Return the rest of a node's lease, its whole lease, and the age of its last heartbeat. Units: ms. */
function leaseOf(row, told) {
  const lease = row.lease_ms ?? told.lease_ms; // until a node reports its own, assume that of this node
  const age = row.beat_age_ms;
  return [Number.isFinite(age) ? Math.max(0, lease - age) : age, lease, age];
}

function leaseBar([leftMs, lease, age]) {
  if (!Number.isFinite(leftMs)) return duration(leftMs);
  const left = leftMs / lease;
  const look = left > 0.5 ? "" : left > 0.2 ? "warn" : "bad";
  const bar = h("i", {});
  bar.style.setProperty("--part", `${(left * 100).toFixed(0)}%`);
  return h("span", { class: `lease meter ${look}`, title: `the last heartbeat was ${duration(age)} ago` }, h("span", { class: "track" }, bar), say(h("span", { class: "faint" }), leftMs ? duration(leftMs) : "expired"));
}

function countingOut(row) {
  return ask({
    title: `Count out ${row.node}?`,
    body: [h("p", {}, "The other nodes take over the messages of ", h("strong", {}, row.node), " without waiting for its lease to end. Do this only if its process has ended; it is refused for a node that is alive.")],
    action: "Count out",
    look: "danger",
    submit: async () => {
      await change("DELETE", ["slotmq", "cluster", "nodes", row.node]);
      toast(`${row.node} is counted out`);
    },
  });
}
