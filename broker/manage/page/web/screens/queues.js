// All queues, paginated by the server, with live numbers.

import { button, h } from "../parts/dom.js";
import { change } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { area, check, field, jsonObject, select } from "../parts/form.js";
import { count, rate, rateOf } from "../parts/format.js";
import { features, state } from "../parts/panels.js";
import { publishing } from "../parts/publish.js";
import { deleting, moving, pausing, purging } from "../parts/queue_actions.js";
import { address, go } from "../parts/router.js";
import { paged } from "../parts/rows.js";
import { inVhost, reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";
import { vhostField } from "./exchanges.js";

const FIELDS = [
  "name", "vhost", "state", "idle_since", "durable", "auto_delete", "exclusive", "arguments", "policy", "operator_policy",
  "messages", "messages_ready", "messages_unacknowledged", "consumers",
  ...["publish", "deliver_get", "ack"].map((name) => `message_stats.${name}_details.rate`),
].join(",");
const IDLE_MS = 10_000;

export const queues = { path: "queues", title: "Queues", key: "q", group: "Topology", open };

const stat = (name, label, rank) => ({ key: name, label, unit: "/s", look: "number", rank, sort: `message_stats.${name}_details.rate`, value: (row) => rateOf(row.message_stats, name), show: rate });

function open(view) {
  const several = !reader.vhost && reader.vhosts.length > 1;
  const after = (done) => async () => (await done()) && shown.refresh();
  const shown = table(view, {
    noun: "queue",
    emptyHint: "Clients declare queues, and you can add one here.",
    id: (row) => `${row.vhost} ${row.name}`,
    columns: [
      { key: "name", label: "Queue", look: "name", sort: "name", value: (row) => [row.vhost, row.name], show: ([vhost, name]) => h("a", { href: address(["queues", vhost, name]) }, name) },
      several && { key: "vhost", label: "Vhost", sort: "vhost", rank: 3 },
      { key: "features", label: "Features", rank: 3, value: (row) => [row.durable, row.auto_delete, row.exclusive, row.arguments, row.policy, row.operator_policy], show: (_, row) => features(row) },
      { key: "state", label: "State", rank: 2, sort: "state", value: shownState, show: state },
      { key: "messages_ready", label: "Ready", look: "number", sort: "messages_ready", show: count },
      { key: "messages_unacknowledged", label: "Unacked", look: "number", sort: "messages_unacknowledged", show: count },
      { key: "consumers", label: "Consumers", look: "number", sort: "consumers", rank: 2, show: count },
      stat("publish", "In", 2),
      stat("deliver_get", "Out", 2),
      stat("ack", "Acked", 3),
    ].filter(Boolean),
    source: paged(() => inVhost("queues"), { columns: FIELDS }),
    tools: [button("Add queue", "", async () => (await declaring()) && shown.refresh())],
    menu: (row) => [
      { label: "Show messages", press: () => go(["queues", row.vhost, row.name], { tab: "" }) },
      { label: "Publish…", press: () => publishing({ vhost: row.vhost, exchange: "", queue: row.name }) },
      null,
      { label: row.state === "paused" ? "Continue" : "Pause…", press: after(() => pausing([row], row.state !== "paused")) },
      { label: "Move messages…", press: after(() => moving(row)) },
      { label: "Purge…", look: "bad", press: after(() => purging([row])) },
      { label: "Delete…", look: "bad", press: after(() => deleting([row])) },
    ],
    picks: [
      { label: "Pause…", press: (rows) => pausing(rows, true) },
      { label: "Purge…", look: "bad", press: purging },
      { label: "Delete…", look: "bad", press: deleting },
    ],
  });
  view.show(shown.element);
}

/** Return the state of a queue, "idle" for a running one without activity for a while. */
function shownState(row) {
  const since = row.idle_since ? Date.parse(row.idle_since) : Date.now();
  return row.state === "running" && Date.now() - since > IDLE_MS ? "idle" : row.state;
}

function declaring() {
  return ask({
    title: "Add a queue",
    action: "Add queue",
    body: [
      h("div", { class: "fields" }, field("Name", "name", { required: true, maxlength: 255 }), select("Type", "type", reader.parts.choices.queue_types), vhostField()),
      h("div", { class: "row" }, check("Durable", "durable", { checked: true }), check("Auto-delete", "auto_delete")),
      area("Arguments, as a JSON object", "arguments", { placeholder: "{\"x-message-ttl\": 60000, \"x-dead-letter-exchange\": \"dead\"}" }),
    ],
    submit: async (form) => {
      const given = jsonObject(form.arguments, "Arguments");
      if (form.type !== "classic") given["x-queue-type"] = form.type;
      await change("PUT", ["queues", form.vhost ?? reader.vhosts[0], form.name], { durable: form.durable, auto_delete: form.auto_delete, arguments: given });
      toast(`Queue ${form.name} declared`);
    },
  });
}
