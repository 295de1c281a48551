// The story of a dead letter, from its header x-death: where it was published, where and why it died, and its queue.

import { h } from "./dom.js";
import { count, exchangeName, moment } from "./format.js";

const REASONS = {
  rejected: "a consumer rejected it",
  expired: "it was not consumed in time",
  maxlen: "the queue was full",
  delivery_limit: "it was returned too often",
};

/** Return the deaths in the header x-death of a message, the latest first. A publisher may have sent any value. */
export function deathsOf(message) {
  const deaths = message.properties?.headers?.["x-death"];
  if (!Array.isArray(deaths)) return [];
  return deaths.filter((one) => one !== null && typeof one === "object").map((one) => ({
    queue: text(one.queue),
    reason: text(one.reason),
    exchange: text(one.exchange),
    keys: Array.isArray(one["routing-keys"]) ? one["routing-keys"].map(text) : [],
    count: typeof one.count === "number" ? one.count : 1,
    at: timeOf(one.time),
    expiration: one["original-expiration"],
  }));
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value ?? "");
}

/** Return a time in ms: x-death has seconds, or a date as text. */
function timeOf(value) {
  if (typeof value === "number") return value * 1000;
  const parsed = typeof value === "string" ? Date.parse(value) : NaN;
  return Number.isNaN(parsed) ? undefined : parsed;
}

/** Return the story as a list of steps; null for a message that was never dead-lettered. */
export function story(message, here) {
  const deaths = deathsOf(message).reverse();
  if (deaths.length === 0) return null;
  const [first] = deaths;
  const steps = [
    step("", ["Published to ", h("strong", {}, exchangeName(first.exchange))], first.keys.length ? ["with ", first.keys.flatMap((key, at) => [at > 0 ? ", " : null, h("code", {}, key || "(empty)")])] : null),
    ...deaths.map((death) => step(
      "bad",
      ["Died in ", h("strong", {}, death.queue), ": ", REASONS[death.reason] ?? death.reason],
      [death.reason, death.count > 1 ? ` · ${count(death.count)} times` : "", death.at === undefined ? "" : ` · ${death.count > 1 ? "first " : ""}${moment(death.at)}`, death.expiration === undefined ? "" : ` · expiration was ${death.expiration} ms`],
    )),
    step("now", ["Kept in ", h("strong", {}, here)], message.exchange !== undefined ? ["through ", exchangeName(message.exchange), message.routing_key ? [" with ", h("code", {}, message.routing_key)] : ""] : null),
  ];
  return h("div", { class: "stack tight" }, h("h3", {}, "Story"), h("ol", { class: "story" }, steps));
}

function step(look, what, note) {
  return h("li", { class: look }, h("span", {}, what), note && h("span", { class: "faint small" }, note));
}
