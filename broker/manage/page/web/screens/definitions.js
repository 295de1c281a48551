// Definitions: everything except messages as one JSON document in RabbitMQ's format.

import { button, h, put } from "../parts/dom.js";
import { change, path } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { check, selectOf } from "../parts/form.js";
import { bytes, count, value } from "../parts/format.js";
import { card, facts, notice } from "../parts/panels.js";
import { reader } from "../parts/reader.js";
import { toast, toastError } from "../parts/toast.js";

export const definitions = { path: "definitions", title: "Definitions", key: "f", group: "Admin", needs: "administrator", open };

const NOUNS = ["users", "vhosts", "permissions", "topic_permissions", "policies", "parameters", "global_parameters", "exchanges", "queues", "bindings"];

function open(view) {
  const told = h("div", { "aria-live": "polite" });
  const from = selectOf([["", "the whole broker"], ...reader.vhosts.map((name) => [name, `vhost ${name}`])], { "aria-label": "Export", value: reader.vhost });
  const into = selectOf([["", "the whole broker"], ...reader.vhosts.map((name) => [name, `vhost ${name}`])], { "aria-label": "Import into", value: "" });
  const file = h("input", { type: "file", accept: "application/json,.json", "aria-label": "A definitions file" });
  const choose = async () => {
    const [chosen] = file.files;
    if (!chosen) return;
    try {
      await importing(into.value, chosen, told);
    } catch (error) {
      put(told, notice("bad", `${chosen.name} cannot be imported`, error.message));
    }
    file.value = "";
  };
  file.addEventListener("change", choose);
  view.show(
    h(
      "div",
      { class: "columns-2" },
      card(
        "Export",
        h("p", { class: "soft" }, "Users, vhosts, permissions, policies, exchanges, queues and bindings as one JSON file, without messages. RabbitMQ reads it, too."),
        h("div", { class: "row" }, from, button("Export", "primary", () => exporting(from.value))),
      ),
      card(
        "Import",
        h("p", { class: "soft" }, "A file of SlotMQ or RabbitMQ. Existing objects stay; if an object differs, it is named, and nothing of the file is applied."),
        h("div", { class: "row" }, into, file),
      ),
    ),
    told,
  );
}

/** Save the definitions without parsing them, which would change numbers above 2^53. */
async function exporting(vhost) {
  try {
    const response = await fetch(path(vhost ? ["definitions", vhost] : ["definitions"]), { headers: { "X-Requested-With": "slotmq" }, credentials: "same-origin", cache: "no-store" });
    if (!response.ok) throw new Error(`The broker answered ${response.status}.`);
    const saved = await response.blob();
    const link = h("a", { download: `definitions${vhost ? `-${vhost.replaceAll(/[^\w.-]+/g, "_")}` : ""}.json`, href: URL.createObjectURL(saved) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    toast(`${bytes(saved.size)} exported`);
  } catch (error) {
    toastError(error);
  }
}

/** Show the contents of a file, and import it after a confirmation. */
async function importing(vhost, file, told) {
  const text = await file.text();
  const document_ = JSON.parse(text);
  const held = NOUNS.filter((noun) => Array.isArray(document_[noun]) && document_[noun].length);
  let outcome = null;
  const done = await ask({
    title: `Import ${file.name}?`,
    action: "Import",
    body: [
      h("p", {}, vhost ? ["Into vhost ", h("strong", {}, vhost), "."] : "Into the whole broker.", " The file contains:"),
      h("ul", { class: "counts" }, held.map((noun) => h("li", {}, h("strong", {}, count(document_[noun].length)), ` ${noun.replaceAll("_", " ")}`))),
      check("Skip refused entries, and apply the others", "skip_refused"),
    ],
    submit: async ({ skip_refused }) => {
      outcome = await change("POST", vhost ? ["definitions", vhost] : ["definitions"], text, { query: { outcome: "true", skip_refused: skip_refused ? "true" : "" } });
    },
  });
  if (!done) return;
  put(told, summary(file.name, outcome));
  window.dispatchEvent(new Event("slotmq-vhosts"));
}

/** Return the outcome of an import: numbers of created, changed and existing entries, and those without effect. */
function summary(name, outcome) {
  const counts = (kinds) => Object.entries(kinds ?? {}).filter(([, number]) => number).map(([noun, number]) => `${count(number)} ${noun.replaceAll("_", " ")}`).join(", ");
  const named = (title, all) => (all?.length ? h("div", { class: "stack tight" }, h("h3", {}, title), h("ul", { class: "bullets" }, all.map((one) => h("li", {}, value(one))))) : null);
  return card(
    `${name} is imported`,
    facts([["Created", counts(outcome?.made)], ["Changed", counts(outcome?.changed)], ["Existed already", counts(outcome?.present)]]),
    named("Refused and skipped", outcome?.skipped),
    named("Stored without effect", outcome?.without_effect),
  );
}
