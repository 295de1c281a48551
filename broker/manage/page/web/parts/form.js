// Fields of forms.

import { h } from "./dom.js";

/** Return a text field with its label. `props` go to the input. */
export function field(label, name, props = {}, hint = null) {
  const { value, ...others } = props;
  const input = h("input", { class: "input", name, type: "text", autocomplete: "off", spellcheck: "false", ...others });
  if (value !== undefined) input.value = value;
  return labelled(label, input, hint);
}

/** Return a field for a whole number. */
export function number(label, name, props = {}, hint = null) {
  return field(label, name, { type: "number", inputmode: "numeric", min: 0, step: 1, ...props }, hint);
}

/** Return a text field of several lines. */
export function area(label, name, props = {}, hint = null) {
  const { value, ...others } = props;
  const input = h("textarea", { class: "textarea", name, spellcheck: "false", ...others });
  if (value !== undefined) input.value = value;
  return labelled(label, input, hint);
}

/** Return a choice. `options`: strings, or pairs of value and label. */
export function select(label, name, options, props = {}, hint = null) {
  const input = selectOf(options, { name, ...props });
  return labelled(label, input, hint);
}

/** Return a <select> without a label. */
export function selectOf(options, props = {}) {
  const { value, ...others } = props;
  const input = h("select", { class: "select", ...others });
  for (const option of options) {
    const [set, label] = Array.isArray(option) ? option : [option, option];
    input.append(h("option", { value: set }, label));
  }
  if (value !== undefined) input.value = value;
  return input;
}

/** Return a checkbox with its label at the right. */
export function check(label, name, props = {}) {
  return h("label", { class: "check" }, h("input", { type: "checkbox", name, ...props }), h("span", {}, label));
}

function labelled(label, input, hint) {
  return h("label", { class: "field" }, h("span", {}, label), input, hint && h("span", { class: "hint" }, hint));
}

/** Return a choice as buttons, one of which is pressed. `options`: pairs of value and label. */
export function segments(label, options, chosen, choose) {
  const box = h("div", { class: "segments", role: "group", "aria-label": label });
  for (const [set, text] of options) {
    const press = () => {
      for (const other of box.children) other.setAttribute("aria-pressed", String(other === one));
      choose(set);
    };
    const one = h("button", { type: "button", "aria-pressed": String(set === chosen), on: { click: press } }, text);
    box.append(one);
  }
  return box;
}

/** Return the object in a JSON text; an empty text is an empty object. Raises: Error, which names the field. */
export function jsonObject(text, name) {
  if (text.trim() === "") return {};
  let parsed;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
  if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed)) {
    throw new Error(`${name} should be a JSON object, such as {"x-match": "all"}`);
  }
  return parsed;
}
