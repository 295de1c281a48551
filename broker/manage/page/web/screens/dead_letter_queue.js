// The dead letters of one queue: why and where each died, and requeueing them.

import { button, h, put } from "../parts/dom.js";
import { change, get, isAbort } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { number, select, selectOf } from "../parts/form.js";
import { bytes, count, exchangeName, many } from "../parts/format.js";
import { messageView } from "../parts/message.js";
import { notice } from "../parts/panels.js";
import { moving, purging } from "../parts/queue_actions.js";
import { address } from "../parts/router.js";
import { deathsOf, story } from "../parts/story.js";
import { toast } from "../parts/toast.js";

export const deadLetterQueue = { path: "dead-letters/{vhost}/{queue}", title: "Dead letters", open };

const BRIEF = { columns: "name,vhost,messages_ready" };
const BODY_MAX = 65_536; // bytes of each body to load
const BODIES_MAX = 4_194_304; // bytes of all bodies

async function open(view) {
  const { vhost, queue: name } = view.words;
  const words = ["queues", vhost, name];
  view.title(["Dead letters", ["dead-letters"]], name);
  let row = await get(words, BRIEF, view.signal);
  let messages = [];
  let chosen = null; // the selected kind of death, null for all
  const amount = selectOf([["50", "First 50"], ["200", "First 200"], ["1000", "First 1,000"]], { "aria-label": "How many", value: "50" });
  const told = h("span", { class: "faint" });
  const kinds = h("div", { class: "row" });
  const list = h("div", { class: "message-list", role: "listbox", "aria-label": "Dead letters" });
  const whole = h("div", { class: "message" });
  const both = h("div", { class: "messages" }, list, whole);
  const failed = h("div", { hidden: true });
  const nothing = h("div", { class: "card", hidden: true }, h("div", { class: "empty" }, h("strong", {}, "No dead letter is ready here"), h("span", {}, "Some may be unacked, or all were requeued.")));

  const load = async () => {
    try {
      messages = await get([...words, "peek"], { count: amount.value, truncate: Math.min(BODY_MAX, Math.floor(BODIES_MAX / Number(amount.value))), encoding: "auto" }, view.signal);
      row = await get(words, BRIEF, view.signal);
      failed.hidden = true;
      show();
    } catch (error) {
      if (isAbort(error)) return;
      put(failed, notice("bad", "The dead letters cannot be shown", error.message));
      failed.hidden = false;
    }
  };

  function show() {
    const counted = kindsOf(messages);
    if (chosen !== null && !counted.has(chosen)) chosen = null;
    put(told, `${count(messages.length)} of ${count(row.messages_ready)} ready. They stay in the queue.`);
    put(kinds, counted.size === 0 ? null : [
      kindButton("All", messages.length, null),
      ...[...counted].map(([kind, one]) => kindButton(`${one.reason} in ${one.queue}`, one.count, kind)),
    ]);
    const shown = messages.filter((message) => chosen === null || kindOf(message) === chosen);
    both.hidden = shown.length === 0;
    nothing.hidden = shown.length > 0;
    put(list, shown.map(entry));
    list.firstChild?.click();
  }

  function kindButton(label, number, kind) {
    const press = () => {
      chosen = kind;
      show();
    };
    return button([label, h("span", { class: "faint" }, count(number))], "small", press, { "aria-pressed": String(chosen === kind) });
  }

  function entry(message) {
    const [death] = deathsOf(message);
    const line = h(
      "button",
      { type: "button", role: "option", "aria-selected": "false" },
      h("span", { class: "key-text" }, message.routing_key || "(no routing key)"),
      h("span", { class: "size" }, bytes(message.payload_bytes)),
      h("span", { class: "preview" }, death ? `${death.reason} in ${death.queue}` : "no x-death header: never dead-lettered"),
      death && death.count > 1 ? h("span", { class: "badge warn" }, `${count(death.count)}×`) : h("span", {}),
    );
    line.addEventListener("click", () => {
      for (const other of list.children) other.setAttribute("aria-selected", String(other === line));
      put(whole, story(message, name), messageView(withoutDeaths(message), "", () => {}));
    });
    return line;
  }

  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!by) return;
    const lines = [...list.children];
    const next = lines[lines.indexOf(document.activeElement) + by];
    next?.focus();
    next?.click();
    event.preventDefault();
    event.stopPropagation();
  });
  const after = (doing) => async () => (await doing()) && load();
  const requeue = after(() => requeueing(row, kindsOf(messages), chosen));
  amount.addEventListener("change", load);
  view.onKey("r", "Requeue", requeue);
  view.show(
    h(
      "div",
      { class: "row" },
      h("h1", {}, name),
      h("a", { href: address(["queues", vhost, name]) }, "Show the queue"),
      h("span", { class: "push" }),
      button("Requeue…", "primary", requeue),
      button("Move…", "", after(() => moving(row))),
      button("Purge…", "quiet bad", after(() => purging([row]))),
    ),
    h("div", { class: "row" }, button("Reload", "", load), amount, told),
    kinds,
    failed,
    nothing,
    both,
  );
  view.onTick(async () => {
    row = await get(words, BRIEF, view.signal);
    if ((row.messages_ready === 0) !== (messages.length === 0)) await load();
  });
  await load();
}

/** Return the kinds of deaths of messages: kind -> {reason, queue, count}, the most frequent first. */
function kindsOf(messages) {
  const found = new Map();
  for (const message of messages) {
    const [death] = deathsOf(message);
    if (!death) continue;
    const kind = kindOf(message);
    const one = found.get(kind) ?? { reason: death.reason, queue: death.queue, count: 0 };
    one.count += 1;
    found.set(kind, one);
  }
  return new Map([...found].sort(([, one], [, other]) => other.count - one.count));
}

function kindOf(message) {
  const [death] = deathsOf(message);
  return death ? JSON.stringify([death.reason, death.queue]) : "";
}

/** Return a message without the headers about its deaths, which the story shows. */
function withoutDeaths(message) {
  const { headers, ...others } = message.properties ?? {};
  const kept = Object.fromEntries(Object.entries(headers ?? {}).filter(([name]) => name !== "x-death" && !/^x-(first|last)-death-/.test(name)));
  return { ...message, properties: { ...others, headers: kept } };
}

/** Requeue dead letters after asking where to; return true if it was done. */
function requeueing(row, kinds, chosen) {
  const all = [["", "every reason and queue"], ...[...kinds].map(([kind, one]) => [kind, `${one.reason} in ${one.queue}`])];
  return ask({
    title: `Requeue the dead letters of ${row.name}`,
    action: "Requeue",
    body: [
      h("p", {}, h("strong", {}, many(row.messages_ready, "message")), " ready. Each is requeued exactly once, even if the broker is killed meanwhile; a message that was never dead-lettered stays."),
      h(
        "div",
        { class: "fields" },
        select("Which", "kind", all, { value: chosen ?? "" }),
        select("Back to", "into", [["queue", "the queue where it died"], ["exchange", "the exchange it was published to"]]),
        number("At most", "limit", { min: 1, placeholder: "all" }, "From the head. Empty for all."),
      ),
    ],
    submit: async ({ kind, into, limit }) => {
      const body = { into };
      const one = kinds.get(kind);
      if (one) Object.assign(body, { reasons: [one.reason], died_in: [one.queue] });
      if (limit !== "") body.limit = Number(limit);
      const told = await change("POST", ["queues", row.vhost, row.name, "requeue-dead-letters"], body);
      toast(outcome(told));
    },
  });
}

function outcome(told) {
  const parts = [`${many(told.moved, "dead letter")} requeued`];
  if (told.unroutable) parts.push(`${count(told.unroutable)} stay: their queue or exchange does not exist`);
  if (told.refused) parts.push(`${count(told.refused)} stay: the queue refused them`);
  if (told.stopped) parts.push(`stopped: ${told.stopped}`);
  return parts.join("; ");
}
