// A button that opens a list of actions. The list is a popover, so nothing covers it or cuts it off.

import { button, h, icon } from "./dom.js";

/** Return a menu. `items`: {label, press, look, hint}, null for a rule, a string for a heading. */
export function menu(label, content, items, look = "quiet icon") {
  const box = h("div", { class: "menu" });
  const list = h("div", { class: "menu-list", role: "menu", popover: "manual" });
  let opened = false;
  const close = () => {
    list.remove();
    opened = false;
    open.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside, true);
    window.removeEventListener("scroll", follow, true);
    window.removeEventListener("resize", follow);
  };
  const outside = (event) => {
    if (!box.contains(event.target)) close();
  };
  const follow = () => place(list, open.getBoundingClientRect());
  const toggle = () => {
    if (opened) return close();
    list.replaceChildren(...(typeof items === "function" ? items() : items).map((item) => entry(item, close)));
    box.append(list);
    list.showPopover();
    place(list, open.getBoundingClientRect());
    opened = true;
    window.addEventListener("scroll", follow, true);
    window.addEventListener("resize", follow);
    open.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", outside, true);
    list.querySelector("button, a")?.focus({ preventScroll: true });
  };
  const open = button(content, look, toggle, { "aria-label": label, "aria-haspopup": "menu", "aria-expanded": "false", title: label });
  box.addEventListener("keydown", (event) => {
    if (!opened) return;
    const entries = [...list.querySelectorAll("button, a")];
    const at = entries.indexOf(document.activeElement);
    if (event.key === "Escape") {
      close();
      open.focus();
    } else if (event.key === "ArrowDown") entries[(at + 1) % entries.length].focus();
    else if (event.key === "ArrowUp") entries[(at - 1 + entries.length) % entries.length].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  box.append(open);
  return box;
}

/** Place a list below a button, or above it if there is no room, with aligned right edges. */
function place(list, around) {
  const below = around.bottom + 4;
  const top = below + list.offsetHeight > window.innerHeight ? Math.max(8, around.top - 4 - list.offsetHeight) : below;
  list.style.setProperty("top", `${top}px`);
  list.style.setProperty("left", `${Math.max(8, around.right - list.offsetWidth)}px`);
}

/** Return the button with three dots that opens the actions of a row. */
export function rowMenu(label, items) {
  return menu(label, icon("more"), items, "quiet icon small");
}

function entry(item, close) {
  if (item === null) return h("hr", {});
  if (typeof item === "string") return h("div", { class: "label" }, item);
  const press = () => {
    close();
    item.press();
  };
  return h("button", { type: "button", role: "menuitem", class: item.look ?? "", on: { click: press } }, item.label, item.hint && h("kbd", {}, item.hint));
}
