// One queue: depth and rates, slots, messages, unacked messages, consumers, bindings.

import { button, h, icon, put } from "../parts/dom.js";
import { get } from "../parts/api.js";
import { chart } from "../parts/chart.js";
import { count, many, moment, rate, short } from "../parts/format.js";
import { draining, mayDrain } from "../parts/draining.js";
import { segments } from "../parts/form.js";
import { History, SPANS } from "../parts/history.js";
import { menu } from "../parts/menu.js";
import { card, features, figures, notice, state, tabs } from "../parts/panels.js";
import { publishing } from "../parts/publish.js";
import { deleting, moving, pausing, purging, releasing } from "../parts/queue_actions.js";
import { go } from "../parts/router.js";
import { strip } from "../parts/strip.js";
import { toastError } from "../parts/toast.js";
import { bindingsTab, consumersTab, detailsTab, messagesTab, unackedTab } from "./queue_tabs.js";

export const queue = { path: "queues/{vhost}/{queue}", title: "Queue", open };

const DEPTH = [{ name: "messages_ready", label: "Ready", k: 1 }, { name: "messages_unacknowledged", label: "Unacked", k: 4 }];
const RATES = [{ name: "publish", label: "In", k: 1 }, { name: "deliver_get", label: "Out", k: 2 }, { name: "ack", label: "Acknowledged", k: 3 }];

const BRIEF = {
  columns: [ // without those that the broker must count; rates are in the live stream
    "name", "vhost", "state", "durable", "auto_delete", "exclusive", "arguments", "policy", "operator_policy",
    "messages", "messages_ready", "messages_unacknowledged", "messages_delayed", "next_delayed_at", "consumers", "consumer_details",
  ].join(","),
};

async function open(view) {
  const { vhost, queue: name } = view.words;
  const words = ["queues", vhost, name];
  view.title(["Queues", ["queues"]], name);
  let row = await get(words, BRIEF, view.signal);
  const history = new History([...DEPTH, ...RATES].map((one) => one.name));
  let span = Number(view.query.span) || 600_000;

  const head = h("div", { class: "row" });
  const gone = h("div", { hidden: true });
  const paused = h("div", { hidden: true });
  const delayed = h("div", { hidden: true });
  const shown = figures([
    { name: "ready", label: "Ready", k: 1 },
    { name: "unacked", label: "Unacked", k: 4 },
    { name: "publish", label: "In", k: 1, unit: "/s" },
    { name: "deliver_get", label: "Out", k: 2, unit: "/s" },
    { name: "ack", label: "Acked", k: 3, unit: "/s" },
    { name: "consumers", label: "Consumers" },
  ]);
  const choice = segments("Span of the charts", SPANS, String(span), (chosen) => {
    span = Number(chosen);
    view.keep({ span: span === 600_000 ? "" : span });
    draw();
  });
  const depth = chart({ title: "Messages in the queue", series: DEPTH, format: short });
  const rates = chart({ title: "Messages per second", series: RATES, format: rate, area: false, head: choice });
  const slots = strip();
  const draw = () => {
    depth.update(history.at, history.values, span);
    rates.update(history.at, history.values, span);
  };
  const refresh = async () => {
    row = await get(words, BRIEF, view.signal);
    show();
  };
  const take = (told) => {
    gone.hidden = !told.gone;
    if (told.gone) return;
    Object.assign(row, { messages: told.messages, messages_ready: told.messages_ready, messages_unacknowledged: told.messages_unacknowledged, consumers: told.consumers, state: told.state, policy: told.policy, operator_policy: told.operator_policy });
    for (const kind of ["publish", "deliver_get", "ack"]) shown.set(kind, rate(told[kind]));
    show();
    if (told.publish === null) return; // the first value of a stream has no rates
    history.add(Date.now(), told);
    draw();
  };
  const context = { words, vhost, name, row: () => row, refresh, changed: null };
  const parts = tabs(view, [
    { name: "messages", label: "Messages", open: (box, signal) => messagesTab(view, context, box, signal) },
    { name: "unacked", label: "Unacked", open: (box, signal) => unackedTab(view, context, box, signal) },
    { name: "consumers", label: "Consumers", open: (box, signal) => consumersTab(view, context, box, signal) },
    { name: "bindings", label: "Bindings", open: (box, signal) => bindingsTab(view, context, box, signal) },
    { name: "details", label: "Details", open: (box, signal) => detailsTab(view, context, box, signal) },
  ]);

  const after = (done) => async () => {
    if (!(await done())) return;
    await refresh().then(() => Promise.all([showSlots(), context.changed?.()])).catch(toastError);
  };
  const marks = h("span", { class: "row" });
  const pause = button("", "", after(() => pausing([row], row.state !== "paused")));
  function show() {
    shown.set("ready", short(row.messages_ready));
    shown.set("unacked", short(row.messages_unacknowledged));
    shown.set("consumers", count(row.consumers));
    parts.count("unacked", row.messages_unacknowledged ? short(row.messages_unacknowledged) : "");
    parts.count("consumers", row.consumers ? count(row.consumers) : "");
    parts.count("messages", row.messages_ready ? short(row.messages_ready) : "");
    delayed.hidden = !row.messages_delayed;
    if (row.messages_delayed) {
      put(delayed, notice("plain", `${many(row.messages_delayed, "message")} delayed`, row.next_delayed_at ? `The next one is delayed until ${moment(row.next_delayed_at)}.` : ""));
    }
    const stamp = JSON.stringify([row.state, row.arguments, row.policy, row.operator_policy]);
    if (head.stamp === stamp) return;
    head.stamp = stamp;
    const isPaused = row.state === "paused";
    paused.hidden = !isPaused;
    put(marks, state(row.state), features(row));
    put(pause, isPaused ? "Continue" : "Pause…");
  }

  put(
    head,
    h("h1", {}, name),
    marks,
    h("span", { class: "push" }),
    button("Publish…", "primary", after(() => publishing({ vhost, exchange: "", queue: name }))),
    pause,
    menu("More", icon("more"), [
      { label: "Move messages…", press: after(() => moving(row)) },
      { label: "Release delayed messages…", press: after(() => releasing(row)) },
      ...(mayDrain() ? [{ label: "Drain consumers…", press: after(() => draining(`Drain the consumers of ${name}?`, "Its current consumers receive no more messages, can settle theirs, and are then cancelled. New consumers take over.", { queue: name, vhost })) }] : []),
      { label: "Purge…", look: "bad", press: after(() => purging([row])) },
      { label: "Delete…", look: "bad", press: async () => (await deleting([row])) && go(["queues"]) },
    ], "icon"),
  );
  put(paused, notice("warn", "This queue is paused", "It accepts messages but delivers none until it is resumed."));
  view.show(gone, head, paused, delayed, shown.element, h("div", { class: "columns-2" }, depth.element, rates.element), card("Slots", slots.element), parts.element);
  put(gone, notice("plain", "This queue is deleted", "The page shows its last known state."));
  show();
  parts.start();
  view.onLive(`queue/${encodeURIComponent(vhost)}/${encodeURIComponent(name)}`, take);
  get(["history", ...words], {}, view.signal).then((told) => {
    history.load(told);
    draw();
  }, () => {}); // charts start now
  const showSlots = async () => slots.update(await get([...words, "slots"], {}, view.signal));
  await showSlots().catch((error) => put(slots.element, h("span", { class: "faint" }, error.message)));
  view.onTick(async () => {
    if (!gone.hidden) return;
    await refresh();
    await showSlots();
  });
}
