// The tabs of a queue's screen.

import { button, h, put } from "../parts/dom.js";
import { get, isAbort } from "../parts/api.js";
import { selectOf } from "../parts/form.js";
import { bytes, clock, count, duration, moment, orNone, value, yesNo } from "../parts/format.js";
import { messageList } from "../parts/message.js";
import { card, facts, notice } from "../parts/panels.js";
import { address } from "../parts/router.js";
import { listed } from "../parts/rows.js";
import { table } from "../parts/table.js";
import { binding, bindingTable } from "./exchange.js";

const UNACKED_MAX = 500; // the oldest deliveries
const DETAILS = [
  "vhost", "type", "durable", "auto_delete", "exclusive", "node", "idle_since", "messages_ram", "messages_persistent", "message_bytes", "messages_by_priority", "duplicates_dropped",
  "messages_delayed", "next_delayed_at", "last_delayed_at", "delayed_retry",
  "arguments", "policy", "operator_policy", "effective_policy_definition",
].join(",");
const TRUNCATE = 65_536; // bytes of each body to load

/** Draw the messages at the head of the queue, which stay ready. */
export async function messagesTab(view, context, box, signal) {
  const { words, row } = context;
  const shown = messageList({ empty: "No ready message" });
  const told = h("span", { class: "faint" });
  const amount = selectOf([["20", "20 messages"], ["100", "100 messages"], ["500", "500 messages"]], { "aria-label": "How many", value: "20" });
  const failed = h("div", {});
  let listed = 0;
  const load = async () => {
    try {
      const messages = await get([...words, "peek"], { count: amount.value, truncate: TRUNCATE }, signal);
      shown.update(messages);
      listed = messages.length;
      put(told, `The head of the queue: ${count(messages.length)} of ${count(row().messages_ready)} ready at ${clock(Date.now())}. They stay in the queue.`);
      put(failed);
    } catch (error) {
      if (!isAbort(error)) put(failed, notice("bad", "The messages cannot be shown", error.message));
    }
  };
  amount.addEventListener("change", load);
  put(box, h("div", { class: "row" }, button("Reload", "", load), amount, told), failed, shown.element);
  context.changed = load;
  signal.addEventListener("abort", () => (context.changed = null));
  // the user may be reading a message, so the list is reloaded only when it is wrong about whether the queue is empty
  view.within(signal).onTick(() => ((row().messages_ready === 0) === (listed === 0) ? null : load()));
  await load();
}

/** Return the connection of an unacked message: a link on this node, else its name and node. */
function holder(name, row) {
  if (row.node) return `${name}, node ${row.node}`;
  return name ? h("a", { href: address(["connections", name]) }, name) : "–";
}

/** Draw the unacked messages, the oldest deliveries first. */
export function unackedTab(view, { words }, box, signal) {
  const shown = table(view.within(signal), {
    noun: "unacked message",
    filter: false,
    prefix: "u",
    empty: "No message waits for an acknowledgement",
    id: (row) => `${row.node ?? ""} ${row.connection} ${row.channel} ${row.delivery_tag}`,
    columns: [
      { key: "age_ms", label: "Unacked for", look: "number", sort: "age_ms", show: duration },
      { key: "consumer_tag", label: "Consumer", look: "text", sort: "consumer_tag", show: (tag) => tag || "basic.get" },
      { key: "connection", label: "Connection", look: "text", rank: 2, show: holder },
      { key: "channel", label: "Channel", look: "number", rank: 3 },
      { key: "routing_key", label: "Routing key", look: "text", value: (row) => row.routing_key ?? "on disk" },
      { key: "id", label: "Message id", look: "number", rank: 2, show: count },
      { key: "redelivered", label: "Redelivered", rank: 3, show: (again) => (again ? h("span", { class: "badge warn" }, "yes") : "no") },
    ],
    source: listed(() => get([...words, "unacked"], { count: UNACKED_MAX }, signal)),
    sort: "age_ms",
    desc: true,
  });
  put(box, shown.element);
}

/** Draw the consumers. */
export function consumersTab(view, { row }, box, signal) {
  const shown = table(view.within(signal), {
    noun: "consumer",
    filter: false,
    prefix: "c",
    empty: "No consumer",
    emptyHint: "Messages wait until a client consumes them.",
    id: (one) => `${one.channel_details?.name} ${one.consumer_tag}`,
    columns: [
      { key: "consumer_tag", label: "Consumer", look: "name" },
      { key: "channel", label: "Channel", look: "text", rank: 2, value: (one) => [one.channel_details?.connection_name ?? "", one.channel_details?.name ?? ""], show: ([connection, name]) => h("a", { href: address(["connections", connection]) }, name) },
      { key: "ack_required", label: "Acks", value: (one) => (one.ack_required ? "manual" : "automatic") },
      { key: "prefetch_count", label: "Prefetch", look: "number", show: (limit) => (limit === 0 ? "∞" : count(limit)) },
      { key: "priority", label: "Priority", look: "number", rank: 3, value: (one) => one.arguments?.["x-priority"] ?? 0 },
      { key: "active", label: "Active", rank: 2, value: (one) => (one.active === false ? "waits" : one.exclusive ? "exclusive" : "yes") },
      { key: "arguments", label: "Arguments", look: "text", rank: 3, value: (one) => (Object.keys(one.arguments ?? {}).length ? value(one.arguments) : "") },
    ],
    source: listed(async () => row().consumer_details),
  });
  put(box, shown.element);
}

/** Draw the bindings of the queue. */
export function bindingsTab(view, { words, vhost, name }, box, signal) {
  const shown = bindingTable(view.within(signal), { prefix: "b", title: "Source", empty: "No binding", load: () => get([...words, "bindings"], {}, signal), far: "source" });
  shown.tools.append(button("Bind…", "", async () => (await binding(vhost, { queue: name })) && shown.refresh()));
  put(box, shown.element);
}

/** Return the ready messages of each level of a quorum queue, the highest first; null for another queue. */
function byPriority(levels) {
  if (!levels) return null;
  return Object.entries(levels).sort(([a], [b]) => b - a).map(([level, ready]) => `${level}: ${count(ready)}`).join(", ") || "none";
}

/** Draw arguments, policies and sizes, for which the broker counts the messages. */
export async function detailsTab(view, { words }, box, signal) {
  const one = await get(words, { columns: DETAILS }, signal);
  put(
    box,
    h(
      "div",
      { class: "columns-2" },
      card("Queue", facts([["Vhost", one.vhost], ["Type", one.type], ["Durable", yesNo(one.durable)], ["Auto-delete", yesNo(one.auto_delete)], ["Exclusive", yesNo(one.exclusive)], ["Node", one.node], ["Idle since", one.idle_since ?? null], ["Messages in memory", count(one.messages_ram)], ["Persistent messages", count(one.messages_persistent)], ["Bytes of bodies", bytes(one.message_bytes)], ["Delayed messages", count(one.messages_delayed)], ["Delayed until", one.messages_delayed ? `${moment(one.next_delayed_at)} to ${moment(one.last_delayed_at)}` : null], ["Delayed retry", one.delayed_retry], ...(one.type === "quorum" ? [["Ready by priority", byPriority(one.messages_by_priority)]] : []), ...(one.duplicates_dropped ? [["Duplicates dropped", count(one.duplicates_dropped)]] : [])])),
      card("Arguments and policies", facts([...Object.entries(one.arguments), ["Policy", orNone(one.policy)], ["Operator policy", orNone(one.operator_policy)], ...Object.entries(one.effective_policy_definition).map(([name, set]) => [`by policy: ${name}`, value(set)])])),
    ),
  );
}
