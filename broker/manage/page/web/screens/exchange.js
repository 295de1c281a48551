// One exchange: its rates and its bindings.

import { button, h } from "../parts/dom.js";
import { change, get } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { area, field, jsonObject, select } from "../parts/form.js";
import { exchangeName, rate, rateOf, value } from "../parts/format.js";
import { card, facts, features, figures } from "../parts/panels.js";
import { publishing } from "../parts/publish.js";
import { address, go } from "../parts/router.js";
import { listed } from "../parts/rows.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";
import { deletingExchanges, exchangeAddress, isFixed } from "./exchanges.js";

export const exchange = { path: "exchanges/{vhost}/{exchange}", title: "Exchange", open };

async function open(view) {
  const { vhost } = view.words;
  const words = ["exchanges", vhost, view.words.exchange];
  let row = await get(words, {}, view.signal);
  view.title(["Exchanges", ["exchanges"]], exchangeName(row.name));
  const shown = figures([{ name: "in", label: "Published in", k: 1, unit: "/s" }, { name: "out", label: "Routed out", k: 2, unit: "/s" }]);
  const show = () => {
    shown.set("in", rate(rateOf(row.message_stats, "publish_in")));
    shown.set("out", rate(rateOf(row.message_stats, "publish_out")));
  };
  const out = bindingTable(view, { prefix: "b", title: "Destination", empty: "Nothing is bound to this exchange", load: () => get([...words, "bindings", "source"], {}, view.signal), far: "destination" });
  const isDefault = row.name === "";
  view.show(
    h(
      "div",
      { class: "row" },
      h("h1", {}, exchangeName(row.name)),
      features(row),
      h("span", { class: "push" }),
      button("Publish…", "primary", () => publishing({ vhost, exchange: row.name })),
      !isDefault && button("Bind…", "", async () => (await binding(vhost, { source: row.name })) && out.refresh()),
      !isFixed(row.name) && button("Delete…", "quiet bad", async () => (await deletingExchanges([row])) && go(["exchanges"])),
    ),
    shown.element,
    h("h2", {}, "Bindings from this exchange"),
    out.element,
    card("Exchange", facts([["Vhost", vhost], ["Type", row.type], ["Topic index", row.topic_index], ["Policy", row.policy], ...Object.entries(row.arguments ?? {}).map(([name, set]) => [name, value(set)])])),
  );
  show();
  view.onTick(async () => {
    row = await get(words, {}, view.signal);
    show();
  });
}

/** Return the table of the bindings of one object. `far` is their other end: "destination" or "source". */
export function bindingTable(view, { prefix, title, empty, load, far }) {
  const shown = table(view, {
    noun: "binding",
    prefix,
    live: false,
    sort: far,
    empty,
    id: (row) => [row.source, row.destination_type, row.destination, row.properties_key].join(" "),
    columns: [
      { key: far, label: title, look: "name", sort: far, value: (row) => [row.vhost, row[far], far === "source" ? "exchange" : row.destination_type], show: ([vhost, name, type]) => h("a", { href: type === "queue" ? address(["queues", vhost, name]) : exchangeAddress(vhost, name) }, exchangeName(name)) },
      { key: "type", label: "Type", rank: 2, value: (row) => (far === "source" ? "exchange" : row.destination_type) },
      { key: "routing_key", label: "Routing key", sort: "routing_key", show: (key) => h("code", {}, key) },
      { key: "arguments", label: "Arguments", rank: 2, value: (row) => (Object.keys(row.arguments).length ? value(row.arguments) : ""), show: (text) => h("code", {}, text) },
    ],
    source: listed(load, [far, "routing_key"]),
    menu: (row) => (row.source === "" ? [{ label: "Bindings of the default exchange cannot be removed", press: () => {} }] : [{ label: "Unbind…", look: "bad", press: async () => (await unbinding(row)) && shown.refresh() }]),
  });
  return shown;
}

/** Remove a binding after a confirmation; return true if it was done. */
export function unbinding(row) {
  const type = row.destination_type === "queue" ? "q" : "e";
  return ask({
    title: "Remove this binding?",
    body: [h("p", {}, "From ", h("strong", {}, exchangeName(row.source)), " to ", h("strong", {}, row.destination), row.routing_key ? [" with ", h("code", {}, row.routing_key)] : "", ". Messages in the queue stay.")],
    action: "Unbind",
    look: "danger",
    submit: async () => {
      await change("DELETE", ["bindings", row.vhost, "e", row.source, type, row.destination, row.properties_key]);
      toast("Binding removed");
    },
  });
}

/** Bind after asking for the other end. Pass `source` (an exchange) or `queue`. */
export function binding(vhost, { source, queue }) {
  const ends = source === undefined
    ? [field("From exchange", "source", { required: true })]
    : [select("To", "type", [["q", "Queue"], ["e", "Exchange"]]), field("Name", "destination", { required: true })];
  return ask({
    title: source === undefined ? `Bind queue ${queue}` : `Bind to ${source}`,
    action: "Bind",
    body: [h("div", { class: "fields" }, ends, field("Routing key", "routing_key", { maxlength: 255 })), area("Arguments, as a JSON object", "arguments", { rows: 2 })],
    submit: async (form) => {
      const from = source ?? form.source;
      const [type, to] = source === undefined ? ["q", queue] : [form.type, form.destination];
      await change("POST", ["bindings", vhost, "e", from, type, to], { routing_key: form.routing_key, arguments: jsonObject(form.arguments, "Arguments") });
      toast("Bound");
    },
  });
}
