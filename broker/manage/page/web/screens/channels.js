// Channels of all connections.

import { h } from "../parts/dom.js";
import { count, rate, rateOf } from "../parts/format.js";
import { state } from "../parts/panels.js";
import { paged } from "../parts/rows.js";
import { address } from "../parts/router.js";
import { reader } from "../parts/reader.js";
import { table } from "../parts/table.js";

export const channels = { path: "channels", title: "Channels", key: "h", group: "Traffic", open };

const stat = (name, label, rank, hint) => ({ key: name, label, unit: "/s", look: "number", rank, hint, sort: `message_stats.${name}_details.rate`, value: (row) => rateOf(row.message_stats, name), show: rate });

export const CHANNEL_COLUMNS = [
  { key: "name", label: "Channel", look: "name", sort: "name", value: (row) => [row.name, row.connection_details?.name ?? ""], show: ([name, of]) => (of ? h("a", { href: address(["connections", of]) }, name) : name) },
  { key: "vhost", label: "Vhost", sort: "vhost", rank: 3 },
  { key: "user", label: "User", sort: "user", rank: 3 },
  { key: "mode", label: "Mode", rank: 2, value: (row) => (row.confirm ? "confirms" : row.transactional ? "transactions" : ""), show: (mode) => mode && h("span", { class: "badge" }, mode) },
  { key: "state", label: "State", sort: "state", rank: 2, show: state },
  { key: "prefetch_count", label: "Prefetch", look: "number", sort: "prefetch_count", rank: 3, show: (limit) => (limit === 0 ? "∞" : count(limit)) },
  { key: "consumer_count", label: "Consumers", look: "number", sort: "consumer_count", rank: 3, show: count },
  { key: "messages_unacknowledged", label: "Unacked", look: "number", sort: "messages_unacknowledged", show: count },
  { key: "messages_unconfirmed", label: "Unconfirmed", look: "number", sort: "messages_unconfirmed", rank: 2, show: count },
  stat("publish", "Published", 2),
  stat("deliver_get", "Delivered", 1),
  stat("ack", "Acked", 3),
];

function open(view) {
  const words = () => (reader.vhost ? ["vhosts", reader.vhost, "channels"] : ["channels"]);
  const shown = table(view, { noun: "channel", empty: "No channel is open", id: (row) => row.name, columns: CHANNEL_COLUMNS, source: paged(words) });
  view.show(shown.element);
}
