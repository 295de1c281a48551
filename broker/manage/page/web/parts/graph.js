// The overlay as a graph: the brokers of this process at the left, their neighbours, and the leaves behind each.

import { h, put, s } from "./dom.js";
import { bytes, count } from "./format.js";

const ROW = 46;
const LEAVES_SHOWN = 12; // of one tree node; the others are counted
const WIDTH_MIN = 560; // narrower screens scroll the graph
const HALF = 78; // half of the width of a box

/** Return {element, update(brokers)} of the graph. Shapes: brokers are as in answers of GET /api/slotmq/overlay. */
export function graph() {
  const svg = s("svg", { role: "img", "aria-label": "Brokers of the overlay" });
  const frame = h("div", { class: "graph-frame", tabindex: 0 }, svg);
  let shown = [];
  const draw = () => {
    const width = Math.max(WIDTH_MIN, frame.clientWidth);
    const drawn = layout(shown, [HALF + 2, width / 2, width - HALF - 2]);
    svg.setAttribute("width", width);
    svg.setAttribute("height", drawn.height);
    put(svg, drawn.edges, drawn.nodes);
  };
  const update = (brokers) => {
    shown = brokers;
    draw();
  };
  new ResizeObserver(draw).observe(frame);
  const legend = h("div", { class: "legend" }, [["up", "link up"], ["full", "link up, with a backlog"], ["down", "link down"]].map(([state, label]) => h("span", { class: "row tight" }, h("span", { class: `key link-${state}` }), label)));
  return { element: h("div", { class: "graph stack tight" }, legend, frame), update };
}

/** Return the shapes of brokers; `columns` are the centres of the columns of brokers, neighbours and leaves. */
function layout(brokers, columns) {
  const edges = [];
  const nodes = [];
  const places = new Map(); // tree node -> y of its leaves, which are drawn once
  let y = ROW / 2;
  for (const broker of brokers) {
    const first = y;
    const links = broker.links.map((link) => {
      const leaves = places.has(link.node) ? [] : broker.leaves.filter((leaf) => leaf.node === link.node);
      places.set(link.node, y);
      const shown = leaves.slice(0, LEAVES_SHOWN);
      const rows = Math.max(1, shown.length + (leaves.length > shown.length ? 1 : 0));
      const at = y + ((rows - 1) * ROW) / 2;
      shown.forEach((leaf, index) => {
        const leafY = y + index * ROW;
        edges.push(curve(columns[1] + HALF, at, columns[2] - HALF, leafY, "behind", ""));
        nodes.push(box(columns[2], leafY, leaf.leaf, leaf.durable ? `V_b ${count(leaf.time)} · durable` : `V_b ${count(leaf.time)}`, "leaf"));
      });
      if (leaves.length > shown.length) nodes.push(box(columns[2], y + shown.length * ROW, `${count(leaves.length - shown.length)} more`, "leaves behind", "leaf faint"));
      y += rows * ROW;
      return { link, at };
    });
    const center = links.length ? (links[0].at + links.at(-1).at) / 2 : first;
    if (!links.length) y += ROW;
    for (const { link, at } of links) {
      edges.push(curve(columns[0] + HALF, center, columns[1] - HALF, at, `link-${link.state}`, `${link.state} · ${bytes(link.sent_bytes)} out, ${bytes(link.received_bytes)} in`));
      nodes.push(box(columns[1], at, link.peer, link.node === link.peer ? link.state : `${link.node} · ${link.state}`, `peer link-${link.state}`));
    }
    nodes.push(box(columns[0], center, broker.broker, broker.leaf ? "this leaf" : `inner, tree node ${broker.node}`, "own"));
    y += ROW / 3;
  }
  return { edges, nodes, height: Math.max(ROW, y - ROW / 2) };
}

function box(x, y, name, note, look) {
  return s(
    "g",
    { class: `node ${look}` },
    s("title", {}, `${name}: ${note}`),
    s("rect", { x: x - HALF, y: y - 18, width: 2 * HALF, height: 36, rx: 7 }),
    s("text", { class: "name", x, y: y - 2, "text-anchor": "middle" }, cut(name, 22)),
    s("text", { class: "note", x, y: y + 12, "text-anchor": "middle" }, cut(note, 27)),
  );
}

function curve(x1, y1, x2, y2, look, title) {
  const middle = (x1 + x2) / 2;
  return s("path", { class: `edge ${look}`, d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` }, title && s("title", {}, title));
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
