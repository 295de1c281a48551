// Vhosts: separate sets of queues, exchanges, policies and permissions.

import { button, h } from "../parts/dom.js";
import { change, get } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { check, field, select } from "../parts/form.js";
import { count, many } from "../parts/format.js";
import { listed } from "../parts/rows.js";
import { address, go } from "../parts/router.js";
import { mayAs, reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";

export const vhosts = { path: "vhosts", title: "Vhosts", key: "x", group: "Admin", open };

function open(view) {
  const mine = mayAs("administrator");
  const shown = table(view, {
    noun: "vhost",
    sort: "name",
    id: (row) => row.name,
    columns: [
      { key: "name", label: "Vhost", look: "name", sort: "name", show: (name) => h("a", { href: address(["vhosts", name]) }, name) },
      { key: "description", label: "Description", look: "text", rank: 2, value: (row) => row.description ?? "" },
      { key: "tags", label: "Tags", rank: 3, value: (row) => row.tags ?? [], show: (tags) => h("span", { class: "badges" }, tags.map((tag) => h("span", { class: "badge" }, tag))) },
      { key: "messages_ready", label: "Ready", look: "number", sort: "messages_ready", show: count },
      { key: "messages_unacknowledged", label: "Unacked", look: "number", sort: "messages_unacknowledged", show: count },
      { key: "tracing", label: "Tracing", rank: 2, value: (row) => (row.tracing ? "on" : "off"), show: (told) => h("span", { class: told === "on" ? "badge warn" : "faint" }, told) },
      { key: "default_queue_type", label: "Default type", rank: 3, value: defaultType },
    ],
    source: listed((signal) => get(["vhosts"], {}, signal)),
    tools: mine ? [button("Add vhost…", "", async () => (await changingVhost(null)) && shown.refresh())] : [],
    menu: (row) => [
      { label: "Permissions and limits", press: () => go(["vhosts", row.name]) },
      mine && { label: "Change…", press: async () => (await changingVhost(row)) && shown.refresh() },
      mine && null,
      mine && { label: "Delete…", look: "bad", press: async () => (await deletingVhost(row)) && shown.refresh() },
    ].filter((item) => item !== false),
  });
  view.show(shown.element);
}

/** Return the default queue type of a vhost, "" without one, for which RabbitMQ's API has "undefined". */
export function defaultType(row) {
  return row.default_queue_type && row.default_queue_type !== "undefined" ? row.default_queue_type : "";
}

function changed() {
  window.dispatchEvent(new Event("slotmq-vhosts"));
}

/** Add or change a vhost in a dialog; return true if it was done. */
export function changingVhost(row) {
  const types = reader.parts.choices.queue_types;
  return ask({
    title: row === null ? "Add a vhost" : `Change ${row.name}`,
    action: row === null ? "Add vhost" : "Change",
    body: [
      h("div", { class: "fields" }, row === null && field("Name", "name", { required: true, maxlength: 255 }), field("Description", "description", { value: row?.description ?? "" }), field("Tags", "tags", { value: (row?.tags ?? []).join(","), placeholder: "production, eu" })),
      h("div", { class: "fields" }, select("Default queue type", "type", [["", "chosen by the client"], ...types], { value: types.includes(row?.default_queue_type) ? row.default_queue_type : "" })),
      check("Trace: copy every message to amq.rabbitmq.trace", "tracing", { checked: row?.tracing ?? false }),
    ],
    submit: async (form) => {
      const name = row?.name ?? form.name;
      const tags = form.tags.split(",").map((tag) => tag.trim()).filter(Boolean);
      const body = { description: form.description, tags, tracing: form.tracing };
      if (form.type) body.default_queue_type = form.type;
      await change("PUT", ["vhosts", name], body);
      changed();
      toast(row === null ? `Vhost ${name} added` : `Vhost ${name} changed`);
    },
  });
}

/** Delete a vhost after its name was typed; return true if it was done. */
export function deletingVhost(row) {
  return ask({
    title: `Delete vhost ${row.name}?`,
    body: [
      h("p", {}, "Its queues, ", h("strong", {}, many(row.messages, "message")), ", exchanges, policies and permissions are deleted with it, and its clients are disconnected. This cannot be undone."),
      field("Type its name to delete it", "name", { required: true }),
    ],
    action: "Delete",
    look: "danger",
    submit: async ({ name }) => {
      if (name !== row.name) throw new Error("That is not its name.");
      await change("DELETE", ["vhosts", row.name]);
      changed();
      toast(`Vhost ${row.name} deleted`);
    },
  });
}
