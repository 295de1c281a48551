// Actions on queues. Each asks for confirmation, shows the consequences, and returns true if it was carried out.

import { h } from "./dom.js";
import { change } from "./api.js";
import { ask } from "./dialog.js";
import { check, field, number } from "./form.js";
import { count, many } from "./format.js";
import { toast } from "./toast.js";

/** Drop ready messages of queues: all, or the first N. */
export function purging(rows) {
  const ready = rows.reduce((sum, row) => sum + row.messages_ready + (row.messages_delayed ?? 0), 0);
  return ask({
    title: rows.length === 1 ? `Purge ${rows[0].name}?` : `Purge ${many(rows.length, "queue")}?`,
    body: [
      h("p", {}, "The queue drops its ready and delayed messages for good, ", h("strong", {}, many(ready, "message")), " now. Unacked messages stay with their consumers."),
      number("At most", "limit", { min: 1, placeholder: "all" }, "From the head of the queue. Empty for all."),
    ],
    action: "Purge",
    look: "danger",
    submit: async ({ limit }) => {
      let purged = 0;
      for (const row of rows) {
        purged += (await change("POST", ["queues", row.vhost, row.name, "purge"], undefined, { query: { limit } })).messages;
      }
      toast(`${many(purged, "message")} dropped`);
    },
  });
}

/** Release delayed messages of a queue now: all, or those that are due next. */
export function releasing(row) {
  return ask({
    title: `Release delayed messages of ${row.name}?`,
    body: [
      h("p", {}, h("strong", {}, many(row.messages_delayed, "message")), " delayed. Released messages are delivered now, before all others."),
      number("At most", "limit", { min: 1, placeholder: "all" }, "The next due first. Empty for all."),
    ],
    action: "Release",
    submit: async ({ limit }) => {
      const answer = await change("POST", ["queues", row.vhost, row.name, "release"], undefined, { query: { limit } });
      toast(`${many(answer.messages, "message")} released`);
    },
  });
}

/** Delete queues with their messages. */
export function deleting(rows) {
  const messages = rows.reduce((sum, row) => sum + row.messages, 0);
  const consumers = rows.reduce((sum, row) => sum + row.consumers, 0);
  return ask({
    title: rows.length === 1 ? `Delete ${rows[0].name}?` : `Delete ${many(rows.length, "queue")}?`,
    body: [
      h("p", {}, "Its bindings and ", h("strong", {}, many(messages, "message")), " are deleted with it", consumers ? [", and ", h("strong", {}, many(consumers, "consumer")), " will be cancelled"] : "", ". This cannot be undone."),
      h("div", { class: "row" }, check("Only if empty", "empty"), check("Only if unused", "unused")),
    ],
    action: "Delete",
    look: "danger",
    submit: async ({ empty, unused }) => {
      for (const row of rows) await change("DELETE", ["queues", row.vhost, row.name], undefined, { query: { "if-empty": empty ? "true" : "", "if-unused": unused ? "true" : "" } });
      toast(rows.length === 1 ? `Queue ${rows[0].name} deleted` : `${count(rows.length)} queues deleted`);
    },
  });
}

/** Move ready messages of a queue to another queue or to an exchange. */
export function moving(row) {
  return ask({
    title: `Move messages of ${row.name}`,
    body: [
      h("p", {}, h("strong", {}, many(row.messages_ready, "message")), " ready. Each is moved exactly once, in order, even if the broker is killed meanwhile."),
      h(
        "div",
        { class: "fields" },
        field("To", "to", { required: true, placeholder: "orders, or exchange:KEY" }, "A queue, an exchange, or exchange:KEY."),
        number("At most", "limit", { min: 1, placeholder: "all" }, "From the head. Empty for all."),
      ),
    ],
    action: "Move",
    submit: async ({ to, limit }) => {
      const answer = await change("POST", ["queues", row.vhost, row.name, "move"], limit === "" ? { to } : { to, limit: Number(limit) });
      toast(`${many(answer.moved, "message")} moved to ${to}${answer.stopped ? `; stopped: ${answer.stopped}` : ""}`);
    },
  });
}

/** Pause or resume the deliveries of queues. */
export async function pausing(rows, pause) {
  const names = rows.length === 1 ? rows[0].name : many(rows.length, "queue");
  if (!pause) {
    for (const row of rows) await change("POST", ["queues", row.vhost, row.name, "resume"]);
    toast(`${names} delivers again`);
    return true;
  }
  return ask({
    title: `Pause ${names}?`,
    body: [h("p", {}, "A paused queue accepts messages but delivers none until it is resumed, also after a restart. Consumers stay connected.")],
    action: "Pause",
    submit: async () => {
      for (const row of rows) await change("POST", ["queues", row.vhost, row.name, "pause"]);
      toast(`${names} paused`);
    },
  });
}
