// Draining: clients settle what they hold, get nothing more, and are told to go.

import { h, put } from "./dom.js";
import { command } from "./api.js";
import { ask } from "./dialog.js";
import { number } from "./form.js";
import { many } from "./format.js";
import { mayAs } from "./reader.js";
import { toast } from "./toast.js";

/** Return true if the reader may drain. */
export function mayDrain() {
  return mayAs("administrator");
}

/** Drain the consumers of a queue, a connection, or without either all clients; closing the dialog ends it. */
export function draining(title, told, target = {}) {
  const waits = h("p", { class: "faint", role: "status" });
  return ask({
    title,
    body: [h("p", {}, told), number("For at most", "timeout", { max: 86400, value: 60, required: true }, "Seconds. What is unacked then goes back to its queue."), waits],
    action: "Drain",
    look: "danger",
    submit: async ({ timeout }, form) => {
      const ended = new AbortController();
      form.closest("dialog").addEventListener("close", () => ended.abort());
      const wait = ({ count }) => put(waits, `${many(count, "unacked message")} left. Cancel, and deliveries go on.`);
      const { closed, cancelled, unacked } = await command("drain", { ...target, timeout_s: Number(timeout) }, wait, ended.signal);
      toast(`${closed ? `${many(closed, "connection")} closed` : `${many(cancelled, "consumer")} cancelled`}${unacked ? `, ${many(unacked, "message")} not settled` : ""}`);
    },
  });
}
