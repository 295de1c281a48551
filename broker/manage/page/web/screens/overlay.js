// The overlay brokers of this process: the graph, the virtual times of leaves (V_b) and of streams (V_m), and the route
// of a message.

import { h, put } from "../parts/dom.js";
import { change, get, isAbort } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { field } from "../parts/form.js";
import { count, exchangeName, many, yesNo } from "../parts/format.js";
import { graph } from "../parts/graph.js";
import { card, figures, notice, tabs } from "../parts/panels.js";
import { listed } from "../parts/rows.js";
import { mayAs, reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";
import { pattern } from "./bindings.js";

export const overlay = { path: "overlay", title: "Overlay", key: "v", group: "Broker", needs: "monitoring", offered: () => reader.parts.overlay, open };

const WAIT_MS = 200; // after the last key press

async function open(view) {
  let brokers = await get(["slotmq", "overlay"], {}, view.signal);
  const shown = figures([
    { name: "links", label: "Links up" },
    { name: "leaves", label: "Leaves known" },
    { name: "lag", label: "To be acknowledged" },
    { name: "behind", label: "To be received" },
    { name: "delivered", label: "Delivered here" },
    { name: "gaps", label: "Gaps" },
  ]);
  const picture = graph();
  // leaves and inner brokers have different lists
  const of = (name) => brokers.flatMap((broker) => (broker[name] ?? []).map((row) => ({ ...row, broker: broker.broker })));
  const tab = (columns, name, options = {}) => (box, signal) => {
    const rows = table(view.within(signal), { noun: "row", filter: false, live: false, prefix: name, size: 250, source: listed(async () => of(name)), columns, ...options });
    follow = () => rows.refresh();
    put(box, rows.element);
  };
  let follow = () => {};
  const parts = tabs(view, [
    { name: "explain", label: "Explain a route", open: (box, signal) => explaining(view, box, signal) },
    {
      name: "leaves",
      label: "Leaves (V_b)",
      open: tab([
        { key: "leaf", label: "Leaf", look: "name", sort: "leaf" },
        { key: "time", label: "Virtual time", look: "number", sort: "time", show: count },
        { key: "node", label: "Behind tree node", sort: "node" },
        { key: "durable", label: "Durable", value: (row) => yesNo(row.durable) },
        { key: "broker", label: "Known by", rank: 2 },
      ], "leaves", { noun: "leaf", sort: "leaf", id: (row) => `${row.broker} ${row.node} ${row.leaf}`, menu: mayAs("administrator") ? (row) => [{ label: "Forget…", look: "bad", press: () => forgetting(row) }] : undefined }),
    },
    {
      name: "streams",
      label: "Published here (V_m)",
      open: tab([
        { key: "exchange", label: "Exchange", look: "name", sort: "exchange", show: exchangeName },
        { key: "vhost", label: "Vhost", rank: 2 },
        { key: "last", label: "Published", look: "number", sort: "last", show: count },
        { key: "sent", label: "Sent", look: "number", rank: 2, show: count },
        { key: "acked", label: "Acknowledged", look: "number", rank: 2, show: count },
        { key: "lag", label: "Lag", look: "number", sort: "lag", show: count },
        { key: "vector", label: "V_m", look: "wrap", rank: 2, show: vector },
      ], "streams", { noun: "stream", sort: "exchange", empty: "Nothing is published here for other brokers", id: (row) => `${row.broker} ${row.vhost} ${row.exchange}` }),
    },
    {
      name: "received",
      label: "Received",
      open: tab([
        { key: "leaf", label: "From leaf", look: "name", sort: "leaf" },
        { key: "exchange", label: "Exchange", sort: "exchange", show: exchangeName },
        { key: "vhost", label: "Vhost", rank: 2 },
        { key: "position", label: "Position", look: "number", rank: 2, show: count },
        { key: "reached", label: "Reached", look: "number", rank: 2, show: count },
        { key: "lag", label: "Lag", look: "number", sort: "lag", show: count },
        { key: "repairs", label: "Repairs", look: "number", sort: "repairs", show: count },
      ], "received", { noun: "stream", sort: "leaf", empty: "Nothing was received from other brokers", id: (row) => `${row.broker} ${row.leaf} ${row.vhost} ${row.exchange}` }),
    },
    {
      name: "patterns",
      label: "Patterns",
      open: tab([
        { key: "node", label: "Tree node", look: "name", sort: "node" },
        { key: "exchange", label: "Exchange", sort: "exchange", show: exchangeName },
        { key: "count", label: "Patterns", look: "number", sort: "count", show: count },
        { key: "patterns", label: "Some of them", look: "wrap", show: (all) => all.flatMap((one, at) => [at > 0 ? ", " : null, pattern(one)]) },
        { key: "vector", label: "From", look: "wrap", rank: 3, show: vector },
      ], "patterns", { noun: "pattern set", sort: "node", empty: "No broker has announced patterns", id: (row) => `${row.broker} ${row.node} ${row.vhost} ${row.exchange}` }),
    },
    {
      name: "passing",
      label: "Passing",
      open: tab([
        { key: "leaf", label: "From leaf", look: "name", sort: "leaf" },
        { key: "exchange", label: "Exchange", sort: "exchange", show: exchangeName },
        { key: "reached", label: "Reached", look: "number", show: count },
        { key: "from", label: "From" },
      ], "passing", { noun: "stream", sort: "leaf", empty: "No stream passes an inner broker of this process", id: (row) => `${row.broker} ${row.leaf} ${row.vhost} ${row.exchange}` }),
    },
  ]);
  const down = h("div", { class: "stack tight", hidden: true });

  function show() {
    const links = brokers.flatMap((broker) => broker.links);
    const cut = links.filter((link) => link.state === "down");
    down.hidden = cut.length === 0;
    put(down, cut.length ? notice("warn", `${many(cut.length, "link")} down`, `To ${cut.map((link) => link.peer).join(", ")}. The broker reconnects automatically; messages wait meanwhile.`) : null);
    const sum = (name, rows) => rows.reduce((all, row) => all + (row[name] ?? 0), 0);
    shown.set("links", `${count(links.length - cut.length)} of ${count(links.length)}`);
    shown.set("leaves", count(new Set(of("leaves").map((row) => row.leaf)).size));
    shown.set("lag", count(sum("lag", of("streams"))));
    shown.set("behind", count(sum("lag", of("received"))));
    shown.set("delivered", count(sum("delivered", brokers)));
    shown.set("gaps", count(sum("gaps", brokers)));
    picture.update(brokers);
    for (const name of ["leaves", "streams", "received", "patterns", "passing"]) parts.count(name, of(name).length ? count(of(name).length) : "");
  }

  view.show(down, shown.element, card("Brokers and links", picture.element), parts.element);
  parts.start();
  show();
  view.onTick(async () => {
    brokers = await get(["slotmq", "overlay"], {}, view.signal);
    show();
    await follow();
  });
}

function vector(times) {
  const all = Object.entries(times);
  return all.length ? h("code", {}, all.map(([leaf, time]) => `${leaf}:${time}`).join(", ")) : "–";
}

/** Draw the form that explains the route of a message with a routing key. */
function explaining(view, box, signal) {
  const key = field("Routing key", "key", { value: view.query.key ?? "", placeholder: "flights.eu.1042", maxlength: 255 });
  const exchange = field("Exchange", "exchange", { value: view.query.exchange ?? "", placeholder: "all that take part" });
  const told = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "route-form" }, key, exchange);
  let timer = 0;
  const run = async () => {
    const asked = { key: form.elements.key.value, exchange: form.elements.exchange.value };
    view.keep(asked);
    try {
      const rows = await get(["slotmq", "overlay", "explain"], { ...asked, vhost: reader.vhost || "/" }, signal);
      put(told, rows.length ? verdicts(rows) : notice("plain", "No exchange of this vhost takes part in the overlay"));
    } catch (error) {
      if (!isAbort(error)) put(told, notice("warn", "The route cannot be explained", error.message));
    }
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(run, WAIT_MS);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  put(box, form, told);
  return view.query.key ? run() : put(told, h("p", { class: "faint" }, "Type a routing key to see which brokers a message would reach, and why."));
}

function verdicts(rows) {
  return h("div", { class: "table-frame" }, h(
    "table",
    { class: "table plain" },
    h("thead", {}, h("tr", {}, ["Exchange", "From", "To", "Goes"].map((label) => h("th", { scope: "col" }, label)), h("th", { class: "rank-2" }, "Why"))),
    h("tbody", {}, rows.map((row) => h(
      "tr",
      {},
      h("td", { class: "text" }, exchangeName(row.exchange)),
      h("td", { class: "text" }, row.broker),
      h("td", { class: "text strong" }, row.to),
      h("td", {}, h("span", { class: `badge ${row.goes ? "good" : ""}` }, yesNo(row.goes))),
      h("td", { class: "rank-2 wrap" }, row.reason),
    ))),
  ));
}

function forgetting(row) {
  return ask({
    title: `Forget leaf ${row.leaf}?`,
    body: [h("p", {}, "No more messages are kept for ", h("strong", {}, row.leaf), ". Do this only if it will not return: otherwise it loses messages.")],
    action: "Forget",
    look: "danger",
    submit: async () => {
      await change("DELETE", ["slotmq", "overlay", "leaves", row.leaf]);
      toast(`${row.leaf} is forgotten`);
    },
  });
}
