// The user of the page: name, tags, and the vhost that lists show. And the parts of SlotMQ that the broker runs.

import { get } from "./api.js";

export const reader = { name: "", tags: new Set(), vhost: localStorage.getItem("slotmq.vhost") ?? "", vhosts: [], parts: {} };

const INCLUDES = { administrator: ["monitoring", "policymaker", "management"], monitoring: ["management"], policymaker: ["management"] };

/** Load the user's name and tags. Raises: ApiError with status 401 if a login is needed. */
export async function learnReader() {
  const user = await get(["whoami"]);
  reader.name = user.name;
  const tags = Array.isArray(user.tags) ? user.tags : String(user.tags ?? "").split(",").filter(Boolean);
  reader.tags = new Set(tags.flatMap((tag) => [tag, ...(INCLUDES[tag] ?? [])]));
  reader.parts = await get(["slotmq"]);
  await learnVhosts();
}

/** Load the vhosts that the user can see. */
export async function learnVhosts() {
  const rows = await get(["vhosts"], { columns: "name" });
  reader.vhosts = rows.map((row) => row.name).sort();
  if (reader.vhost && !reader.vhosts.includes(reader.vhost)) chooseVhost("");
}

/** Select the vhost whose objects lists show, "" for all. */
export function chooseVhost(name) {
  reader.vhost = name;
  name ? localStorage.setItem("slotmq.vhost", name) : localStorage.removeItem("slotmq.vhost");
}

/** Return whether the user has a tag, or one that includes it. */
export function mayAs(tag) {
  return !tag || reader.tags.has(tag);
}

/** Return the path words of a list for the selected vhost, or for all. */
export function inVhost(noun) {
  return reader.vhost ? [noun, reader.vhost] : [noun];
}
