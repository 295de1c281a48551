// Sources of the rows of a table.

import { get } from "./api.js";

/** Return a source of a list that the server paginates, sorts and filters; `extra` is added to the query. */
export function paged(words, extra = {}) {
  return async (asked, signal) => {
    const given = typeof words === "function" ? words() : words;
    const found = await get(given, {
      page: asked.page,
      page_size: asked.size,
      sort: asked.sort,
      sort_reverse: asked.sort && asked.desc ? "true" : "",
      name: asked.name,
      use_regex: asked.name && asked.regex ? "true" : "",
      pagination: "true",
      ...extra,
    }, signal);
    if (Array.isArray(found)) return arrange(found, asked, []);
    return { rows: found.items, total: found.total_count, filtered: found.filtered_count, pages: Math.max(1, found.page_count) };
  };
}

/** Return a source of a short list that the browser sorts, and filters by the named fields. */
export function listed(load, filtered = ["name"]) {
  return async (asked, signal) => arrange(await load(signal), asked, filtered);
}

function arrange(rows, asked, fields) {
  let found = rows;
  if (asked.name) {
    const fits = asked.regex ? matcher(asked.name) : (text) => text.toLowerCase().includes(asked.name.toLowerCase());
    found = rows.filter((row) => fields.some((name) => fits(String(at(row, name) ?? ""))));
  }
  if (asked.sort) {
    const sign = asked.desc ? -1 : 1;
    found = [...found].sort((one, other) => sign * compare(at(one, asked.sort), at(other, asked.sort)));
  }
  const pages = Math.max(1, Math.ceil(found.length / asked.size));
  const first = (Math.min(asked.page, pages) - 1) * asked.size;
  return { rows: found.slice(first, first + asked.size), total: rows.length, filtered: found.length, pages };
}

function matcher(text) {
  try {
    const pattern = new RegExp(text);
    return (tried) => pattern.test(tried);
  } catch (error) {
    throw new Error(`the filter is not a regular expression: ${error.message}`);
  }
}

function at(row, name) {
  return name.split(".").reduce((found, part) => found?.[part], row);
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one ?? "").localeCompare(String(other ?? ""), "en", { numeric: true });
}
