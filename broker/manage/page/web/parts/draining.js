// Draining: clients settle their messages, receive no others, and are closed.

import { h, put } from "./dom.js";
import { command } from "./api.js";
import { ask } from "./dialog.js";
import { number } from "./form.js";
import { many } from "./format.js";
import { mayAs } from "./reader.js";
import { toast } from "./toast.js";

/** Return whether the user may drain. */
export function mayDrain() {
  return mayAs("administrator");
}

/** Drain the consumers of a queue, a connection, or without either all clients; closing the dialog cancels the drain. */
export function draining(title, explanation, target = {}) {
  const waits = h("p", { class: "faint", role: "status" });
  return ask({
    title,
    body: [h("p", {}, explanation), number("For at most", "timeout", { max: 86400, value: 60, required: true }, "Seconds. Messages that are unacked then are requeued."), waits],
    action: "Drain",
    look: "danger",
    submit: async ({ timeout }, form) => {
      const ended = new AbortController();
      form.closest("dialog").addEventListener("close", () => ended.abort());
      const wait = ({ count }) => put(waits, `${many(count, "unacked message")} left. Cancel to resume deliveries.`);
      const { closed, cancelled, unacked } = await command("drain", { ...target, timeout_s: Number(timeout) }, wait, ended.signal);
      toast(`${closed ? `${many(closed, "connection")} closed` : `${many(cancelled, "consumer")} cancelled`}${unacked ? `, ${many(unacked, "message")} not settled` : ""}`);
    },
  });
}
