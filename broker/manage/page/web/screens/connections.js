// The connections of clients, with their traffic.

import { h } from "../parts/dom.js";
import { change } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { field } from "../parts/form.js";
import { bytes, count, many } from "../parts/format.js";
import { state } from "../parts/panels.js";
import { paged } from "../parts/rows.js";
import { address, go } from "../parts/router.js";
import { inVhost, reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";

export const connections = { path: "connections", title: "Connections", key: "c", group: "Traffic", open };

function open(view) {
  const words = () => (reader.vhost ? ["vhosts", reader.vhost, "connections"] : ["connections"]);
  const shown = table(view, {
    noun: "connection",
    empty: "No client is connected",
    emptyHint: "Clients connect over AMQP, to port 5672 unless the settings name another.",
    id: (row) => row.name,
    columns: [
      { key: "name", label: "Connection", look: "name", sort: "name", value: (row) => [row.name, nameOf(row)], show: ([name, given]) => [h("a", { href: address(["connections", name]) }, given || name), given && h("span", { class: "under" }, name)] },
      { key: "vhost", label: "Vhost", sort: "vhost", rank: 2 },
      { key: "user", label: "User", sort: "user", rank: 2 },
      { key: "state", label: "State", sort: "state", show: state },
      { key: "client", label: "Client", rank: 3, value: productOf },
      { key: "protocol", label: "Protocol", rank: 3, value: (row) => `${row.protocol ?? ""}${row.ssl ? " · TLS" : ""}` },
      { key: "channels", label: "Channels", look: "number", sort: "channels", rank: 2, show: count },
      { key: "publishes_lost", label: "Lost", look: "number", sort: "publishes_lost", rank: 3, show: count },
      { key: "in", label: "In", unit: "/s", look: "number", sort: "recv_oct_details.rate", value: (row) => row.recv_oct_details?.rate, show: octets },
      { key: "out", label: "Out", unit: "/s", look: "number", sort: "send_oct_details.rate", value: (row) => row.send_oct_details?.rate, show: octets },
    ],
    source: paged(words),
    menu: (row) => [
      { label: "Show", press: () => go(["connections", row.name]) },
      null,
      { label: "Close…", look: "bad", press: async () => (await closing([row])) && shown.refresh() },
    ],
    picks: [{ label: "Close…", look: "bad", press: closing }],
  });
  view.show(shown.element);
}

function octets(rate) {
  return rate === 0 ? "0" : bytes(rate);
}

/** Return the name that the client has given its connection, or "". */
export function nameOf(row) {
  return row.user_provided_name ?? row.client_properties?.connection_name ?? "";
}

/** Return the client library and its version. */
export function productOf(row) {
  const { product, version } = row.client_properties ?? {};
  return [product, version].filter((part) => typeof part === "string").join(" ");
}

/** Close connections after asking for a reason; return true if it was done. */
export function closing(rows) {
  return ask({
    title: rows.length === 1 ? "Close this connection?" : `Close ${count(rows.length)} connections?`,
    body: [
      h("p", {}, rows.length === 1 ? h("strong", {}, nameOf(rows[0]) || rows[0].name) : "", " Unacknowledged messages return to their queues. Most clients reconnect automatically."),
      field("Reason, which the client receives", "reason", { value: "Closed via the management page", maxlength: 200 }),
    ],
    action: "Close",
    look: "danger",
    submit: async ({ reason }) => {
      for (const row of rows) await change("DELETE", ["connections", row.name], undefined, { headers: { "X-Reason": reason } });
      toast(`${many(rows.length, "connection")} closed`);
    },
  });
}
