// All exchanges, and the form that adds one.

import { button, h } from "../parts/dom.js";
import { change } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { area, check, field, jsonObject, select } from "../parts/form.js";
import { exchangeName, many, rate, rateOf } from "../parts/format.js";
import { features } from "../parts/panels.js";
import { publishing } from "../parts/publish.js";
import { paged } from "../parts/rows.js";
import { address } from "../parts/router.js";
import { inVhost, reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";

const NEEDED = { "x-delayed-message": { "x-delayed-type": "topic" }, "x-message-deduplication": { "x-cache-size": 100000 } }; // arguments that a type requires

export const exchanges = { path: "exchanges", title: "Exchanges", key: "e", group: "Topology", open };

function open(view) {
  const shown = table(view, {
    noun: "exchange",
    id: (row) => `${row.vhost} ${row.name}`,
    columns: [
      { key: "name", label: "Exchange", look: "name", sort: "name", value: (row) => [row.vhost, row.name], show: ([vhost, name]) => h("a", { href: exchangeAddress(vhost, name) }, exchangeName(name)) },
      { key: "vhost", label: "Vhost", sort: "vhost", rank: 2 },
      { key: "type", label: "Type", sort: "type" },
      { key: "features", label: "Features", rank: 2, value: (row) => [row.durable, row.auto_delete, row.internal, row.arguments, row.policy], show: (_, row) => features(row) },
      { key: "in", label: "In", unit: "/s", look: "number", sort: "message_stats.publish_in_details.rate", value: (row) => rateOf(row.message_stats, "publish_in"), show: rate },
      { key: "out", label: "Out", unit: "/s", look: "number", rank: 2, sort: "message_stats.publish_out_details.rate", value: (row) => rateOf(row.message_stats, "publish_out"), show: rate },
    ],
    source: paged(() => inVhost("exchanges")),
    tools: [button("Add exchange", "", async () => (await declaring()) && shown.refresh())],
    menu: (row) => [
      { label: "Publish…", press: () => publishing({ vhost: row.vhost, exchange: row.name }) },
      !isFixed(row.name) && null,
      !isFixed(row.name) && { label: "Delete…", look: "bad", press: async () => (await deletingExchanges([row])) && shown.refresh() },
    ].filter((item) => item !== false),
    picks: [{ label: "Delete…", look: "bad", press: deletingExchanges }],
  });
  view.show(shown.element);
}

/** Return the address of an exchange's screen. The default exchange without a name is "amq.default" in the API. */
export function exchangeAddress(vhost, name) {
  return address(["exchanges", vhost, name || "amq.default"]);
}

/** Return whether an exchange is predeclared by AMQP. */
export function isFixed(name) {
  return name === "" || name.startsWith("amq.");
}

/** Delete exchanges after a confirmation; return true if it was done. */
export function deletingExchanges(rows) {
  return ask({
    title: rows.length === 1 ? "Delete this exchange?" : `Delete ${many(rows.length, "exchange")}?`,
    body: [h("p", {}, rows.length === 1 ? h("strong", {}, rows[0].name) : "", " Its bindings are deleted with it; queues and their messages stay.")],
    action: "Delete",
    look: "danger",
    submit: async () => {
      for (const row of rows) await change("DELETE", ["exchanges", row.vhost, row.name]);
      toast(`${many(rows.length, "exchange")} deleted`);
    },
  });
}

function declaring() {
  const given = area("Arguments, as a JSON object", "arguments", { placeholder: "{\"alternate-exchange\": \"unroutable\"}" });
  const text = given.querySelector("textarea");
  const fill = (event) => {
    if (Object.values(NEEDED).some((needed) => text.value === JSON.stringify(needed))) text.value = "";
    if (text.value === "" && event.target.value in NEEDED) text.value = JSON.stringify(NEEDED[event.target.value]);
  };
  return ask({
    title: "Add an exchange",
    action: "Add exchange",
    body: [
      h("div", { class: "fields" }, field("Name", "name", { required: true, maxlength: 255 }), select("Type", "type", reader.parts.choices.exchange_types, { value: "topic", on: { change: fill } }), vhostField()),
      h("div", { class: "row" }, check("Durable", "durable", { checked: true }), check("Auto-delete", "auto_delete"), check("Internal", "internal")),
      given,
    ],
    submit: async (form) => {
      await change("PUT", ["exchanges", form.vhost ?? reader.vhosts[0], form.name], { type: form.type, durable: form.durable, auto_delete: form.auto_delete, internal: form.internal, arguments: jsonObject(form.arguments, "Arguments") });
      toast(`Exchange ${form.name} declared`);
    },
  });
}

/** Return the field for a vhost in a form, null if there is only one. */
export function vhostField() {
  return reader.vhosts.length > 1 ? select("Vhost", "vhost", reader.vhosts, { value: reader.vhost || reader.vhosts[0] }) : null;
}
