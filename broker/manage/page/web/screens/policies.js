// Policies and operator policies: rules for all queues and exchanges whose names match.

import { button, h, put } from "../parts/dom.js";
import { change, get } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { area, field, jsonObject, number, segments, select } from "../parts/form.js";
import { count, many, value } from "../parts/format.js";
import { listed } from "../parts/rows.js";
import { mayAs, reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";

export const policies = { path: "policies", title: "Policies", key: "y", group: "Admin", open };

const LABELS = { all: "queues and exchanges", classic_queues: "classic queues", quorum_queues: "quorum queues" };
const WAIT_MS = 250; // after the last key press
const SUGGESTED = [
  ["message-ttl", "1min"], ["max-length", 10000], ["max-length-bytes", "1GiB"], ["overflow", "reject-publish"], ["expires", "30min"],
  ["dead-letter-exchange", "dead"], ["dead-letter-routing-key", "key"], ["delivery-limit", 20], ["keep-poisoned", true], ["alternate-exchange", "unroutable"],
];

function open(view) {
  const box = h("div", {});
  const show = (noun) => {
    const operator = noun === "operator-policies";
    view.keep({ kind: operator ? "operator" : "" });
    put(box, list(view, noun, operator).element);
  };
  const chosen = view.query.kind === "operator" ? "operator-policies" : "policies";
  const choice = segments("Kind of policy", [["policies", "Policies"], ["operator-policies", "Operator policies"]], chosen, show);
  view.show(h("div", { class: "row" }, choice, h("span", { class: "faint" }, "Rules for all queues and exchanges whose names match. Of several, the one with the highest priority applies; a policy cannot raise limits of an operator policy.")), box);
  show(chosen);
}

function list(view, noun, operator) {
  const mayChange = mayAs(operator ? "administrator" : "policymaker");
  const shown = table(view, {
    noun: "policy",
    plural: "policies",
    live: false,
    sort: "priority",
    desc: true,
    empty: operator ? "No operator policies" : "No policies",
    emptyHint: "A policy sets limits, expiry, dead-lettering and alternate exchanges without new declarations.",
    id: (row) => `${row.vhost} ${row.name}`,
    columns: [
      { key: "name", label: "Policy", look: "name", sort: "name" },
      { key: "vhost", label: "Vhost", sort: "vhost", rank: 2 },
      { key: "pattern", label: "Names that match", show: (text) => h("code", {}, text) },
      { key: "apply-to", label: "Of", rank: 2 },
      { key: "definition", label: "Rules", look: "wrap", show: (rules) => h("span", { class: "badges" }, Object.entries(rules).map(([name, set]) => h("span", { class: "badge" }, `${name}: ${value(set)}`))) },
      { key: "priority", label: "Priority", look: "number", sort: "priority", show: String },
    ],
    source: listed((signal) => get(reader.vhost ? [noun, reader.vhost] : [noun], {}, signal)),
    tools: mayChange ? [button("Add policy…", "", async () => (await changing(noun, null, operator)) && shown.refresh())] : [],
    menu: mayChange ? (row) => [
      { label: "Change…", press: async () => (await changing(noun, row, operator)) && shown.refresh() },
      { label: "Delete…", look: "bad", press: async () => (await deleting(noun, row)) && shown.refresh() },
    ] : undefined,
  });
  return shown;
}

function changing(noun, row, operator) {
  const vhost = row?.vhost ?? (reader.vhost || reader.vhosts[0]);
  const { policies_apply_to, policy_keys, operator_policy_keys } = reader.parts.choices;
  const keys = operator ? operator_policy_keys : policy_keys;
  const rules = area("Rules, as a JSON object", "definition", { rows: 4, required: true, value: row === null ? "" : JSON.stringify(row.definition, null, 1), placeholder: "{\"max-length\": 10000}" }, "Sizes and times are bytes and milliseconds, or strings with a unit, such as \"10GB\" and \"7d\".");
  const text = rules.querySelector("textarea");
  const add = (name, set) => {
    try {
      text.value = JSON.stringify({ ...jsonObject(text.value, "Rules"), [name]: set }, null, 1);
    } catch {
      text.setAttribute("aria-invalid", "true"); // submitting shows the error
    }
    text.focus();
  };
  const preview = h("span", { class: "hint" });
  const pattern = field("Pattern", "pattern", { required: true, value: row?.pattern ?? "^", placeholder: "^orders\\." }, "A regular expression that names match anywhere: ^ and $ anchor it.");
  pattern.append(preview);
  let timer = 0;
  const look = async (form) => {
    try {
      const found = await get(["queues", form?.elements.vhost?.value ?? vhost], { name: pattern.querySelector("input").value, use_regex: "true", page: 1, page_size: 1, pagination: "true", columns: "name", disable_stats: "true" });
      put(preview, `Matches ${count(found.filtered_count)} of ${many(found.total_count, "queue")} now.`);
    } catch (error) {
      put(preview, error.message);
    }
  };
  pattern.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => look(pattern.closest("form")), WAIT_MS);
  });
  look(null);
  return ask({
    title: row === null ? `Add ${operator ? "an operator policy" : "a policy"}` : `Change ${row.name}`,
    action: row === null ? "Add policy" : "Change",
    wide: true,
    body: [
      h(
        "div",
        { class: "fields" },
        row === null && field("Name", "name", { required: true, maxlength: 255 }),
        row === null && reader.vhosts.length > 1 && select("Vhost", "vhost", reader.vhosts, { value: vhost }),
        pattern,
        select("Applies to", "apply_to", policies_apply_to.map((name) => [name, LABELS[name] ?? name]), { value: row?.["apply-to"] ?? "queues" }),
        number("Priority", "priority", { value: row?.priority ?? 0, min: -2147483648 }),
      ),
      rules,
      h("div", { class: "row suggested" }, h("span", { class: "faint small" }, "Add a rule:"), SUGGESTED.filter(([name]) => keys.includes(name)).map(([name, set]) => button(name, "small quiet", () => add(name, set)))),
    ],
    submit: async (form) => {
      const name = row?.name ?? form.name;
      const definition = jsonObject(form.definition, "Rules");
      if (Object.keys(definition).length === 0) throw new Error("A policy needs at least one rule.");
      const body = { pattern: form.pattern, definition, priority: Number(form.priority), "apply-to": form.apply_to };
      await change("PUT", [noun, row?.vhost ?? form.vhost ?? vhost, name], body);
      toast(`Policy ${name} set`);
    },
  });
}

function deleting(noun, row) {
  return ask({
    title: `Delete policy ${row.name}?`,
    body: [h("p", {}, "Queues and exchanges that match ", h("code", {}, row.pattern), " follow the next policy that matches, or none.")],
    action: "Delete",
    look: "danger",
    submit: async () => {
      await change("DELETE", [noun, row.vhost, row.name]);
      toast(`Policy ${row.name} deleted`);
    },
  });
}
