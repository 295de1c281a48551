// Users and their tags.

import { button, h } from "../parts/dom.js";
import { change, get } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { check, field } from "../parts/form.js";
import { many } from "../parts/format.js";
import { listed } from "../parts/rows.js";
import { address, go } from "../parts/router.js";
import { reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";

export const users = { path: "users", title: "Users", key: "s", group: "Admin", needs: "administrator", open };

const TAGS = [
  ["administrator", "everything"],
  ["monitoring", "sees all vhosts, connections and nodes"],
  ["policymaker", "sets policies and parameters of its vhosts"],
  ["management", "uses this page for its own vhosts"],
];

function open(view) {
  const shown = table(view, {
    noun: "user",
    live: false,
    sort: "name",
    id: (row) => row.name,
    columns: [
      { key: "name", label: "User", look: "name", sort: "name", show: (name) => [h("a", { href: address(["users", name]) }, name), name === reader.name && h("span", { class: "faint" }, " · you")] },
      { key: "tags", label: "Tags", value: tagsOf, show: (tags) => (tags.length ? h("span", { class: "badges" }, tags.map((tag) => h("span", { class: `badge ${tag === "administrator" ? "accent" : ""}` }, tag))) : h("span", { class: "faint" }, "none: clients only")) },
      { key: "password", label: "Password", rank: 2, value: (row) => (row.of_settings ? "in the settings" : row.password_hash ? "set" : "none"), show: (told) => h("span", { class: told === "none" ? "faint" : "" }, told) },
      { key: "limits", label: "Limits", rank: 3, value: (row) => Object.entries(row.limits ?? {}).map(([name, set]) => `${name} ${set}`).join(", ") },
    ],
    source: listed((signal) => get(["users"], {}, signal)),
    tools: [button("Add user…", "", async () => (await changingUser(null)) && shown.refresh())],
    menu: (row) => [
      { label: "Permissions", press: () => go(["users", row.name]) },
      !row.of_settings && { label: "Tags and password…", press: async () => (await changingUser(row)) && shown.refresh() },
      null,
      !row.of_settings && { label: "Delete…", look: "bad", press: async () => (await deletingUsers([row])) && shown.refresh() },
    ].filter((item) => item !== false),
    picks: [{ label: "Delete…", look: "bad", press: deletingUsers }],
  });
  view.show(shown.element);
}

/** Return the tags of a user as a list. */
export function tagsOf(row) {
  return Array.isArray(row.tags) ? row.tags : String(row.tags ?? "").split(",").filter(Boolean);
}

/** Add or change a user in a dialog; return true if it was done. */
export function changingUser(row) {
  const has = new Set(row === null ? ["management"] : tagsOf(row));
  return ask({
    title: row === null ? "Add a user" : `Change ${row.name}`,
    action: row === null ? "Add user" : "Change",
    body: [
      row === null && h("div", { class: "fields" }, field("Name", "name", { required: true, maxlength: 255 })),
      h("div", { class: "fields" }, field("Password", "password", { type: "password", autocomplete: "new-password", placeholder: row === null ? "" : "unchanged" }), field("Repeat it", "again", { type: "password", autocomplete: "new-password" })),
      h("div", { class: "stack tight" }, h("h3", {}, "Tags"), TAGS.map(([tag, told]) => h("div", { class: "row" }, check(tag, tag, { checked: has.has(tag) }), h("span", { class: "faint" }, told)))),
      h("p", {}, "Permissions in vhosts are set on the user's own screen."),
    ],
    submit: async (form) => {
      if (form.password !== form.again) throw new Error("The two passwords differ.");
      if (row === null && form.password === "") throw new Error("A user without a password cannot log in: enter one.");
      const tags = [...TAGS.map(([tag]) => tag).filter((tag) => form[tag]), ...[...has].filter((tag) => !TAGS.some(([known]) => known === tag))].join(",");
      const body = form.password ? { password: form.password, tags } : { password_hash: row.password_hash ?? "", hashing_algorithm: row.hashing_algorithm ?? undefined, tags };
      const name = row?.name ?? form.name;
      await change("PUT", ["users", name], body);
      toast(row === null ? `User ${name} added` : `User ${name} changed`);
    },
  });
}

/** Delete users after a confirmation; return true if it was done. */
export function deletingUsers(rows) {
  return ask({
    title: rows.length === 1 ? `Delete ${rows[0].name}?` : `Delete ${many(rows.length, "user")}?`,
    body: [h("p", {}, "Their permissions are deleted, too, and their connections are closed.", rows.some((row) => row.name === reader.name) ? h("strong", {}, " You are one of them.") : "")],
    action: "Delete",
    look: "danger",
    submit: async () => {
      await change("POST", ["users", "bulk-delete"], { users: rows.map((row) => row.name) });
      toast(`${many(rows.length, "user")} deleted`);
    },
  });
}
