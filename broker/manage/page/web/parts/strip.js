// The slots of a queue as a strip: a cell for each, whose width shows its ids, and whose fill its unsettled messages.

import { h, put, s, say } from "./dom.js";
import { bytes, count, many } from "./format.js";

const CELLS_MAX = 240;
const LOOKS = [
  ["open", "Open: receives new messages"],
  ["sealed", "Sealed"],
  ["leased", "Leased by a delivery worker"],
  ["disk", "On disk only"],
];

/** Return {element, update({slots, slot_count})} of a strip; `slots` may have only the first slots. */
export function strip() {
  const svg = s("svg", { role: "img", "aria-label": "Slots of the queue", preserveAspectRatio: "none", viewBox: "0 0 1000 34" });
  const first = h("span", {});
  const total = h("span", {});
  const last = h("span", {});
  const legend = h("div", { class: "legend" }, LOOKS.map(([look, label]) => h("span", { class: "row tight" }, h("span", { class: `key s-${look}` }), label)));
  const element = h("div", { class: "strip stack tight" }, legend, svg, h("div", { class: "strip-ends" }, first, total, last));
  const update = ({ slots, slot_count: all }) => {
    const cells = gathered(slots);
    const whole = cells.reduce((sum, cell) => sum + cell.size, 0);
    const gap = Math.min(2.2, 300 / Math.max(1, cells.length));
    const room = 1000 - gap * Math.max(0, cells.length - 1);
    // half of the width is divided by ids, and half equally, so that every cell is visible
    let x = 0;
    const drawn = cells.flatMap((cell) => {
      const width = room * (0.5 * (cell.size / whole) + 0.5 / cells.length);
      const left = x;
      x += width + gap;
      const rest = 34 * (1 - cell.settled / cell.size);
      return s(
        "g",
        { class: `s-${cell.look}` },
        s("title", {}, describe(cell)),
        s("rect", { class: "cell back", x: left, y: 0, width, height: 34 }),
        s("rect", { class: "cell", x: left, y: 34 - rest, width, height: rest }),
      );
    });
    put(svg, drawn);
    say(first, cells.length ? `id ${count(slots[0].first)}` : "");
    say(last, cells.length && slots.at(-1).end > slots[0].first ? `id ${count(slots.at(-1).end - 1)}` : "");
    say(total, cells.length ? `${slots.length < all ? `the first ${count(slots.length)} of ` : ""}${many(all, "slot")}, ${bytes(slots.reduce((sum, slot) => sum + slot.bytes, 0))}` : "No slots: the queue is empty");
  };
  return { element, update };
}

/** Return the look of a slot: "disk" takes precedence over "leased", and that over "open" and "sealed". */
function lookOf(slot) {
  if (!slot.resident) return "disk";
  return slot.owner ? "leased" : slot.state === "open" ? "open" : "sealed";
}

function gathered(slots) {
  const each = Math.ceil(slots.length / CELLS_MAX) || 1;
  const cells = [];
  for (let at = 0; at < slots.length; at += each) {
    const group = slots.slice(at, at + each);
    const looks = group.map(lookOf);
    const sum = (value) => group.reduce((all, slot) => all + value(slot), 0);
    cells.push({
      slots: group.length,
      first: group[0].first,
      end: group.at(-1).end,
      level: group[0].level,
      done: sum((slot) => slot.settled),
      ids: sum((slot) => slot.end - slot.first),
      size: sum((slot) => Math.max(1, slot.end - slot.first)),
      settled: sum((slot) => (slot.end === slot.first ? 1 : slot.settled)), // an empty slot is as wide as one id and not filled
      bytes: sum((slot) => slot.bytes),
      look: ["leased", "open", "disk", "sealed"].find((look) => looks.includes(look)),
      owner: group.find((slot) => slot.owner)?.owner,
    });
  }
  return cells;
}

function describe(cell) {
  if (cell.ids === 0) return `${many(cell.slots, "slot")} without a message: ${cell.look}, from id ${count(cell.first)}`;
  const what = cell.slots === 1 ? `Slot ${count(cell.first)}–${count(cell.end - 1)}` : `${cell.slots} slots, ${count(cell.first)}–${count(cell.end - 1)}`;
  const owner = cell.owner ? `, leased by ${cell.owner}` : "";
  return `${what}: ${cell.look}${owner}, ${count(cell.done)} of ${count(cell.ids)} settled, ${bytes(cell.bytes)}`;
}
