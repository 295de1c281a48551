// Builds elements. Text is only put into text nodes and attributes: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "hidden", "indeterminate", "readOnly"]);

/** Return an element. `props`: `class`, `on` (listeners by event), `data`, `style` (custom properties), attributes. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Return an SVG element. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style") for (const [key, set] of Object.entries(value)) element.style.setProperty(key, set);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

/** Return nested children as a flat list of nodes and strings, without null, undefined and false. */
export function nodes(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Replace the content of an element. */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

/** Set the text of an element if it differs, so that the user's selection stays. */
export function say(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
  return element;
}

/** Return a button. `look`: "primary", "danger", "quiet", "small", "icon", or several. */
export function button(label, look, press, props) {
  return h("button", { type: "button", class: `button ${look ?? ""}`, on: { click: press }, ...props }, label);
}

const ICONS = {
  menu: "M3 5h10M3 8h10M3 11h10",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6M8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M3.4 12.6l.7-.7M11.9 4.1l.7-.7",
  moon: "M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8",
  system: "M2.5 3.5h11v7.5h-11zM6 13.5h4M8 11v2.5",
  keys: "M2 4.5h12v7.5H2zM4.5 7h.01M7 7h.01M9.5 7h.01M11.7 7h.01M5 9.6h6",
  user: "M8 8a2.4 2.4 0 1 0 0-4.8A2.4 2.4 0 0 0 8 8M3.2 13.2a4.9 4.9 0 0 1 9.6 0",
  left: "M9.5 4 5.5 8l4 4",
  right: "M6.5 4l4 4-4 4",
  close: "M4.5 4.5l7 7M11.5 4.5l-7 7",
  pause: "M6 4v8M10 4v8",
  play: "M5.5 3.8v8.4l6.5-4.2z",
};

/** Return an icon, hidden from screen readers; its button has the label. */
export function icon(name) {
  return s("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));
}

/** Return the logo of SlotMQ: three slots, of which one is full, one about half full and one nearly empty. */
export function mark() {
  const slot = (y, width, look) => s("rect", { x: 1, y, width, height: 5, rx: 1.5, class: look });
  return s(
    "svg",
    { viewBox: "0 0 22 22", "aria-hidden": "true" },
    slot(2, 20, "mark-full"),
    slot(8.5, 20, "mark-empty"),
    slot(8.5, 12, "mark-full"),
    slot(15, 20, "mark-empty"),
    slot(15, 5, "mark-full"),
  );
}
