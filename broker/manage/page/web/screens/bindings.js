// All bindings, and a form that tests a route: which queues a message reaches, through which bindings, and which index
// finds them. Nothing is published.

import { h, put } from "../parts/dom.js";
import { change, get, isAbort } from "../parts/api.js";
import { area, field, jsonObject, selectOf } from "../parts/form.js";
import { count, exchangeName, many, value } from "../parts/format.js";
import { notice } from "../parts/panels.js";
import { paged } from "../parts/rows.js";
import { address } from "../parts/router.js";
import { inVhost, reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { exchangeAddress } from "./exchanges.js";
import { unbinding } from "./exchange.js";

export const bindings = { path: "bindings", title: "Bindings", key: "b", group: "Topology", open };

const WAIT_MS = 200; // after the last key press
const EXCHANGES_MAX = 500; // in the choice; other names can be typed
const QUEUES_SHOWN = 60;
const TAP = "amq.tap."; // the prefix of the names of taps' queues

function open(view) {
  const shown = table(view, {
    noun: "binding",
    prefix: "b",
    live: false,
    sort: "source",
    desc: true,
    empty: "No bindings",
    emptyHint: "Every queue can be reached through the default exchange by its name.",
    id: (row) => JSON.stringify([row.vhost, row.source, row.destination_type, row.destination, row.properties_key]),
    columns: [
      { key: "source", label: "From exchange", look: "name", sort: "source", value: (row) => [row.vhost, row.source], show: ([vhost, name]) => exchangeLink(vhost, name) },
      { key: "routing_key", label: "Binding key", sort: "routing_key", show: pattern },
      { key: "destination", label: "To", look: "name", sort: "destination", value: (row) => [row.vhost, row.destination, row.destination_type], show: ([vhost, name, type]) => endLink(vhost, name, type) },
      { key: "destination_type", label: "Type", rank: 2 },
      { key: "vhost", label: "Vhost", sort: "vhost", rank: 2 },
      { key: "arguments", label: "Arguments", rank: 3, value: (row) => (Object.keys(row.arguments ?? {}).length ? value(row.arguments) : ""), show: (text) => h("code", {}, text) },
    ],
    source: paged(() => inVhost("bindings")),
    menu: (row) => [
      { label: "Try this key", press: () => tester.take(row.vhost, row.source, row.routing_key) },
      row.source !== "" && { label: "Unbind…", look: "bad", press: async () => (await unbinding(row)) && shown.refresh() },
    ].filter(Boolean),
  });
  const tester = routeTester(view);
  view.show(tester.element, h("h2", {}, "All bindings"), h("p", { class: "faint" }, "The filter applies to the exchange, the binding key and the destination."), shown.element);
}

/** Return {element, take(vhost, exchange, key)} of the form that tests a route; its fields are kept in the address. */
function routeTester(view) {
  const { query } = view;
  const names = h("datalist", { id: "exchange-names" });
  const vhost = selectOf(reader.vhosts, { "aria-label": "Vhost", name: "vhost", value: query.vhost ?? (reader.vhost || reader.vhosts[0]) });
  const exchange = field("Exchange", "exchange", { value: query.exchange ?? "amq.topic", list: names.id, placeholder: "empty: the default exchange" });
  const key = field("Routing key", "routing_key", { value: query.key ?? "", maxlength: 255, placeholder: "flights.eu.1042" });
  const headers = area("Headers, as a JSON object", "headers", { rows: 1, value: query.headers ?? "", placeholder: "{\"kind\": \"order\"}" });
  const told = h("div", { class: "stack", "aria-live": "polite" });
  const form = h(
    "form",
    { class: "route-form" },
    reader.vhosts.length > 1 ? h("label", { class: "field" }, h("span", {}, "Vhost"), vhost) : null,
    exchange,
    key,
    headers,
    names,
  );
  const values = () => ({ vhost: vhost.value, exchange: form.elements.exchange.value, key: form.elements.routing_key.value, headers: form.elements.headers.value });
  let timer = 0;
  let asking = 0;
  const run = async () => {
    const asked = values();
    const current = (asking += 1);
    view.keep({ ...asked, vhost: reader.vhosts.length > 1 ? asked.vhost : "" });
    try {
      const body = { routing_key: asked.key, headers: jsonObject(asked.headers, "Headers") };
      const found = await change("POST", ["exchanges", asked.vhost, asked.exchange || "amq.default", "route"], body, { signal: view.signal });
      if (current === asking) put(told, outcome(asked, found));
    } catch (error) {
      if (isAbort(error) || current !== asking) return;
      put(told, error.status === 404 ? notice("plain", `There is no exchange ${exchangeName(asked.exchange)} in ${asked.vhost}`) : notice("warn", "The route cannot be tested", error.message));
    }
  };
  const learn = async () => {
    try {
      const found = await get(["exchanges", vhost.value], { columns: "name", page: 1, page_size: EXCHANGES_MAX, pagination: "true" }, view.signal);
      put(names, (found.items ?? found).filter((row) => row.name).map((row) => h("option", { value: row.name })));
    } catch (error) {
      if (!isAbort(error)) put(names); // names can still be typed
    }
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(run, WAIT_MS);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  vhost.addEventListener("change", learn);
  view.onKey("r", "Try a route", () => form.elements.routing_key.focus());
  learn();
  run();
  const take = (inside, source, text) => {
    vhost.value = inside;
    form.elements.exchange.value = source;
    form.elements.routing_key.value = text.replaceAll("*", "word").replaceAll("#", "any.words");
    form.elements.routing_key.focus();
    form.scrollIntoView({ block: "center" });
    run();
  };
  const head = h("div", { class: "card-head" }, h("h2", {}, "Try a route"), h("span", { class: "faint" }, "Which queues would a message reach? Nothing is published."));
  return { element: h("section", { class: "card" }, head, form, told), take };
}

/** Return the result of a route: the queues, and a row for each binding that matches. */
function outcome(asked, found) {
  const { matches } = found;
  const queues = found.queues.filter((name) => !name.startsWith(TAP));
  const taps = found.queues.filter((name) => name.startsWith(TAP)).map((name) => name.slice(TAP.length));
  const more = found.match_count - matches.length;
  if (!queues.length) {
    return notice("warn", "No queue: the message would be dropped", "It is returned if the publisher sets mandatory. An alternate exchange can route it.", taps.length ? `The tap ${taps.join(", ")} keeps a copy nevertheless.` : null);
  }
  return [
    h(
      "div",
      { class: "route-queues" },
      h("span", { class: "strong" }, `Reaches ${many(queues.length, "queue")}`),
      queues.slice(0, QUEUES_SHOWN).map((name) => h("a", { class: "badge accent", href: address(["queues", asked.vhost, name]) }, name)),
      queues.length > QUEUES_SHOWN && h("span", { class: "faint" }, `and ${count(queues.length - QUEUES_SHOWN)} more`),
      taps.map((name) => h("a", { class: "badge", href: address(["pipeline"]), title: "a tap keeps a copy" }, `tap ${name}`)),
    ),
    matches.length > 0 && h(
      "div",
      { class: "table-frame" },
      h(
        "table",
        { class: "table plain" },
        h("thead", {}, h("tr", {}, ["Exchange", "Binding key", "Leads to"].map((label) => h("th", { scope: "col" }, label)), ["Arguments", "Found by"].map((label) => h("th", { class: "rank-2", scope: "col" }, label)))),
        h("tbody", {}, matches.map((match) => h(
          "tr",
          {},
          h("td", { class: "name" }, exchangeLink(asked.vhost, match.source), match.alternate_of !== undefined && h("span", { class: "under" }, `alternate of ${exchangeName(match.alternate_of)}`)),
          h("td", {}, pattern(match.routing_key)),
          h("td", { class: "name" }, h("span", { class: "arrow", "aria-hidden": "true" }, "→"), endLink(asked.vhost, match.destination, match.destination_type)),
          h("td", { class: "rank-2 text" }, Object.keys(match.arguments ?? {}).length ? h("code", {}, value(match.arguments)) : ""),
          h("td", { class: "rank-2 text" }, h("span", { class: "faint" }, `${match.exchange_type}, ${match.index}`)),
        ))),
      ),
    ),
    more > 0 && h("p", { class: "faint" }, `${many(more, "more binding")} matched.`),
  ];
}

function exchangeLink(vhost, name) {
  return h("a", { href: exchangeAddress(vhost, name) }, exchangeName(name));
}

function endLink(vhost, name, type) {
  return h("a", { href: type === "queue" ? address(["queues", vhost, name]) : exchangeAddress(vhost, name) }, name);
}

/** Return a binding key with highlighted wildcards. */
export function pattern(key) {
  if (key === "") return h("span", { class: "faint" }, "(empty)");
  const words = key.split(".");
  return h("code", {}, words.flatMap((word, at) => [at > 0 ? "." : null, word === "*" || word === "#" ? h("span", { class: "wild" }, word) : word]));
}
