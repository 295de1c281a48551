// One user: permissions in each vhost, topic permissions, limits.

import { button, h } from "../parts/dom.js";
import { change, get } from "../parts/api.js";
import { ask } from "../parts/dialog.js";
import { field, select } from "../parts/form.js";
import { limitsCard } from "../parts/limits.js";
import { exchangeName } from "../parts/format.js";
import { card, facts, notice } from "../parts/panels.js";
import { listed } from "../parts/rows.js";
import { go } from "../parts/router.js";
import { reader } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { toast } from "../parts/toast.js";
import { changingUser, deletingUsers, tagsOf } from "./users.js";

export const user = { path: "users/{user}", title: "User", needs: "administrator", open };

const LIMITS = [["max-connections", "Connections"], ["max-channels", "Channels"]];

async function open(view) {
  const { user: name } = view.words;
  const row = await get(["users", name], {}, view.signal);
  view.title(["Users", ["users"]], name);
  const rights = rightsTable(view, name);
  const topics = topicTable(view, name);
  const again = async (done) => (await done) && open(view);
  view.show(
    h(
      "div",
      { class: "row" },
      h("h1", {}, name),
      h("span", { class: "badges" }, tagsOf(row).map((tag) => h("span", { class: "badge accent" }, tag))),
      h("span", { class: "push" }),
      !row.of_settings && button("Tags and password…", "", () => again(changingUser(row))),
      !row.of_settings && button("Delete…", "quiet bad", async () => (await deletingUsers([row])) && go(["users"])),
    ),
    row.of_settings && notice("plain", "This user is defined in the settings", "It has all permissions in every vhost, and can only be changed there."),
    h("h2", {}, "Permissions in vhosts"),
    rights.element,
    h("h2", {}, "Topic permissions"),
    topics.element,
    h("div", { class: "columns-2" }, await limitsCard(["user-limits", name], LIMITS, view, !row.of_settings), card("User", facts([["Password", row.password_hash ? "set" : "none"], ["Hashed with", row.hashing_algorithm]]))),
  );
}

function rightsTable(view, name) {
  const shown = table(view, {
    noun: "vhost",
    prefix: "r",
    filter: false,
    live: false,
    sort: "vhost",
    empty: "No access to any vhost",
    emptyHint: "Clients of this user are refused everywhere.",
    id: (row) => row.vhost,
    columns: [
      { key: "vhost", label: "Vhost", look: "name", sort: "vhost" },
      ...["configure", "write", "read"].map((right) => ({ key: right, label: right[0].toUpperCase() + right.slice(1), show: expression })),
    ],
    source: listed((signal) => get(["users", name, "permissions"], {}, signal)),
    tools: [button("Set permissions…", "", async () => (await giving(name, null)) && shown.refresh())],
    menu: (row) => [{ label: "Change…", press: async () => (await giving(name, row)) && shown.refresh() }, { label: "Remove…", look: "bad", press: async () => (await taking(name, row)) && shown.refresh() }],
  });
  return shown;
}

function expression(text) {
  if (text === "") return h("span", { class: "faint" }, "nothing");
  return text === ".*" ? h("span", { title: text }, "everything") : h("code", {}, text);
}

function giving(name, row) {
  const of = (right) => row?.[right] ?? ".*";
  return ask({
    title: row === null ? `Set permissions of ${name} in a vhost` : `Permissions of ${name} in ${row.vhost}`,
    action: "Set",
    body: [
      row === null && h("div", { class: "fields" }, select("Vhost", "vhost", reader.vhosts)),
      h("p", {}, "Regular expressions that the names of queues and exchanges match. Empty: none."),
      h("div", { class: "fields" }, field("Configure", "configure", { value: of("configure") }, "declare, delete"), field("Write", "write", { value: of("write") }, "publish, bind a queue"), field("Read", "read", { value: of("read") }, "consume, bind to an exchange")),
    ],
    submit: async (form) => {
      const vhost = row?.vhost ?? form.vhost;
      await change("PUT", ["permissions", vhost, name], { configure: form.configure, write: form.write, read: form.read });
      toast(`Permissions of ${name} in ${vhost} set`);
    },
  });
}

function taking(name, row) {
  return ask({
    title: `Remove the permissions in ${row.vhost}?`,
    body: [h("p", {}, "New clients of ", h("strong", {}, name), " are refused there; connected clients lose their permissions.")],
    action: "Remove",
    look: "danger",
    submit: async () => {
      await change("DELETE", ["permissions", row.vhost, name]);
      toast(`Permissions of ${name} in ${row.vhost} removed`);
    },
  });
}

function topicTable(view, name) {
  const shown = table(view, {
    noun: "exchange",
    prefix: "t",
    filter: false,
    live: false,
    empty: "No restriction: every routing key is allowed if the exchange is",
    id: (row) => `${row.vhost} ${row.exchange}`,
    columns: [
      { key: "exchange", label: "Topic exchange", look: "name", show: exchangeName },
      { key: "vhost", label: "Vhost", look: "text" },
      { key: "write", label: "Publish with", show: expression },
      { key: "read", label: "Bind with", show: expression },
    ],
    source: listed((signal) => get(["users", name, "topic-permissions"], {}, signal)),
    tools: [button("Restrict topics…", "", async () => (await restricting(name)) && shown.refresh())],
    menu: (row) => [{ label: "Remove…", look: "bad", press: async () => (await unrestricting(name, row)) && shown.refresh() }],
  });
  return shown;
}

function restricting(name) {
  return ask({
    title: `Restrict the routing keys of ${name}`,
    action: "Set",
    body: [
      h("div", { class: "fields" }, select("Vhost", "vhost", reader.vhosts), field("Topic exchange", "exchange", { required: true, value: "amq.topic" })),
      h("p", {}, "Regular expressions; {username}, {vhost} and {client_id} are replaced by those of the client."),
      h("div", { class: "fields" }, field("Publish with keys", "write", { value: "^{username}\\." }), field("Bind with keys", "read", { value: ".*" })),
    ],
    submit: async (form) => {
      await change("PUT", ["topic-permissions", form.vhost, name], { exchange: form.exchange, write: form.write, read: form.read });
      toast(`Routing keys of ${name} restricted`);
    },
  });
}

function unrestricting(name, row) {
  return ask({
    title: "Remove this restriction?",
    body: [h("p", {}, h("strong", {}, name), " may use every routing key of ", h("strong", {}, exchangeName(row.exchange)), " where it has permissions for the exchange.")],
    action: "Remove",
    look: "danger",
    submit: async () => {
      await change("DELETE", ["topic-permissions", row.vhost, name, row.exchange || "amq.default"]);
      toast("Restriction removed");
    },
  });
}
