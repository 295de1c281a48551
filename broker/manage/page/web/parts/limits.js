// The limits of a vhost or of a user, each set and cleared separately.

import { button, h, put } from "./dom.js";
import { change, get } from "./api.js";
import { count } from "./format.js";
import { card } from "./panels.js";
import { toast, toastError } from "./toast.js";

/** Return the card of the limits. `words`: ["vhost-limits", vhost]; `names`: pairs of limit and label. */
export async function limitsCard(words, names, view, mayChange) {
  const box = h("div", { class: "limits" });
  const show = async () => {
    const [row] = await get(words, {}, view.signal);
    const set = row?.value ?? {};
    put(box, names.map(([name, label]) => line(words, name, label, set[name], mayChange, show)));
  };
  await show();
  return card("Limits", box);
}

function line(words, name, label, set, mayChange, show) {
  const input = h("input", { class: "input", type: "number", min: -1, step: 1, placeholder: "no limit", "aria-label": label, value: set ?? "", disabled: !mayChange });
  const save = async () => {
    try {
      if (input.value === "") await change("DELETE", [...words, name]);
      else await change("PUT", [...words, name], { value: Number(input.value) });
      toast(input.value === "" ? `${label}: no limit` : `${label}: at most ${count(Number(input.value))}`);
      await show();
    } catch (error) {
      toastError(error);
    }
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") save();
  });
  return h("div", { class: "row" }, h("span", { class: "soft" }, label), h("span", { class: "push" }), input, mayChange && button("Set", "small", save));
}
