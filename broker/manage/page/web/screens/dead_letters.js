// Dead letters: the queues that they reach, and the exchanges where they are lost.

import { h, put } from "../parts/dom.js";
import { get } from "../parts/api.js";
import { count, exchangeName, many } from "../parts/format.js";
import { notice } from "../parts/panels.js";
import { listed } from "../parts/rows.js";
import { address } from "../parts/router.js";
import { reader } from "../parts/reader.js";
import { table } from "../parts/table.js";

export const deadLetters = { path: "dead-letters", title: "Dead letters", key: "d", group: "Topology", open };

function open(view) {
  const lost = h("div", { class: "stack tight", hidden: true });
  const load = async (signal) => {
    const rows = await get(reader.vhost ? ["slotmq", "dead-letters", reader.vhost] : ["slotmq", "dead-letters"], {}, signal);
    showLost(lost, rows.filter((row) => row.name === null && row.lost));
    return rows.filter((row) => row.name !== null);
  };
  const shown = table(view, {
    noun: "queue",
    sort: "messages_ready",
    desc: true,
    empty: "No queue keeps dead letters",
    emptyHint: "Give a queue the argument x-dead-letter-exchange, or a policy with dead-letter-exchange: messages that its consumers reject or that expire are kept there.",
    id: (row) => `${row.vhost} ${row.name}`,
    columns: [
      { key: "name", label: "Kept in queue", look: "name", sort: "name", value: (row) => [row.vhost, row.name], show: ([vhost, name]) => h("a", { href: address(["dead-letters", vhost, name]) }, name) },
      { key: "vhost", label: "Vhost", sort: "vhost", rank: 2 },
      { key: "messages_ready", label: "Dead letters", look: "number", sort: "messages_ready", show: count },
      { key: "messages_unacknowledged", label: "Unacked", look: "number", sort: "messages_unacknowledged", rank: 2, show: count },
      { key: "consumers", label: "Consumers", look: "number", sort: "consumers", rank: 2, show: count },
      { key: "sources", label: "From queues", look: "text", rank: 2, value: (row) => [row.vhost, row.sources, row.source_count], show: sourceLinks },
    ],
    source: listed(load, ["name", "vhost"]),
    menu: (row) => [{ label: "Show the dead letters", press: () => location.assign(address(["dead-letters", row.vhost, row.name])) }, { label: "Show the queue", press: () => location.assign(address(["queues", row.vhost, row.name])) }],
  });
  view.show(lost, shown.element);
}

function sourceLinks([vhost, names, all]) {
  const links = names.slice(0, 3).flatMap((name, at) => [at > 0 ? ", " : null, h("a", { href: address(["queues", vhost, name]) }, name)]);
  return [...links, all > 3 ? h("span", { class: "faint" }, ` and ${count(all - 3)} more`) : null];
}

function showLost(box, rows) {
  box.hidden = rows.length === 0;
  put(box, rows.map((row) => notice(
    "warn",
    `Dead letters of ${row.source_count === 1 ? row.sources[0] : many(row.source_count, "queue")} are lost`,
    `They go to exchange ${exchangeName(row.exchange)}${row.routing_key === null ? "" : ` with key ${row.routing_key}`}: ${row.reason}.`,
    row.source_count === 1 ? null : `Queues: ${row.sources.join(", ")}${row.source_count > row.sources.length ? ", …" : ""}`,
  )));
}
