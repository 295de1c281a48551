// One vhost: the permissions of users in it, and its limits.

import { button, h } from "../parts/dom.js";
import { get } from "../parts/api.js";
import { count } from "../parts/format.js";
import { limitsCard } from "../parts/limits.js";
import { card, facts } from "../parts/panels.js";
import { listed } from "../parts/rows.js";
import { address, go } from "../parts/router.js";
import { mayAs } from "../parts/reader.js";
import { table } from "../parts/table.js";
import { changingVhost, defaultType, deletingVhost } from "./vhosts.js";

export const vhost = { path: "vhosts/{vhost}", title: "Vhost", open };

const LIMITS = [["max-connections", "Connections"], ["max-queues", "Queues"], ["max-blocked-seconds", "Seconds blocked by an alarm"]];

async function open(view) {
  const { vhost: name } = view.words;
  const row = await get(["vhosts", name], {}, view.signal);
  const mine = mayAs("administrator");
  view.title(["Vhosts", ["vhosts"]], name);
  const again = async (done) => (await done) && open(view);
  view.show(
    h(
      "div",
      { class: "row" },
      h("h1", {}, name),
      row.tracing && h("span", { class: "badge warn" }, "tracing"),
      h("span", { class: "push" }),
      mine && button("Change…", "", () => again(changingVhost(row))),
      mine && button("Delete…", "quiet bad", async () => (await deletingVhost(row)) && go(["vhosts"])),
    ),
    h(
      "div",
      { class: "columns-2" },
      card("Vhost", facts([["Description", row.description], ["Tags", row.tags.join(", ")], ["Default queue type", defaultType(row)], ["Messages", count(row.messages)], ["Ready", count(row.messages_ready)], ["Unacked", count(row.messages_unacknowledged)]])),
      await limitsCard(["vhost-limits", name], LIMITS, view, mine),
    ),
    mine && h("h2", {}, "Permissions"),
    mine && rights(view, name).element,
  );
}

function rights(view, name) {
  return table(view, {
    noun: "user",
    filter: false,
    live: false,
    sort: "user",
    empty: "No user has permissions here",
    emptyHint: "Users of the settings have all permissions in every vhost.",
    id: (row) => row.user,
    columns: [
      { key: "user", label: "User", look: "name", sort: "user", show: (one) => h("a", { href: address(["users", one]) }, one) },
      ...["configure", "write", "read"].map((right) => ({ key: right, label: right[0].toUpperCase() + right.slice(1), show: (text) => h("code", {}, text || "–") })),
    ],
    source: listed((signal) => get(["vhosts", name, "permissions"], {}, signal)),
  });
}
