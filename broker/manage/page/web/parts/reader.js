// Who looks at the page: name, tags, and the vhost that the lists show. And which parts of SlotMQ the broker runs.

import { get } from "./api.js";

export const reader = { name: "", tags: new Set(), vhost: localStorage.getItem("slotmq.vhost") ?? "", vhosts: [], parts: {} };

const INCLUDES = { administrator: ["monitoring", "policymaker", "management"], monitoring: ["management"], policymaker: ["management"] };

/** Learn who asks. Raises: ApiError of status 401 if the broker wants a login first. */
export async function learnReader() {
  const told = await get(["whoami"]);
  reader.name = told.name;
  const tags = Array.isArray(told.tags) ? told.tags : String(told.tags ?? "").split(",").filter(Boolean);
  reader.tags = new Set(tags.flatMap((tag) => [tag, ...(INCLUDES[tag] ?? [])]));
  reader.parts = await get(["slotmq"]);
  await learnVhosts();
}

/** Learn which vhosts there are for this reader. */
export async function learnVhosts() {
  const rows = await get(["vhosts"], { columns: "name" });
  reader.vhosts = rows.map((row) => row.name).sort();
  if (reader.vhost && !reader.vhosts.includes(reader.vhost)) chooseVhost("");
}

/** Show the objects of one vhost only, or of all ("" ). */
export function chooseVhost(name) {
  reader.vhost = name;
  name ? localStorage.setItem("slotmq.vhost", name) : localStorage.removeItem("slotmq.vhost");
}

/** Return true if the reader has a tag, or one that includes it. */
export function mayAs(tag) {
  return !tag || reader.tags.has(tag);
}

/** Return the path words of a list: of the chosen vhost, or of all. */
export function inVhost(noun) {
  return reader.vhost ? [noun, reader.vhost] : [noun];
}
