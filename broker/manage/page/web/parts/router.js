// Addresses of screens, such as "#/queues/%2F/orders?page=2". Path words are quoted; the query has what a link should
// keep: the page, the order, the filter.

/** Return the address of a screen. */
export function address(words, query) {
  const given = Object.entries(query ?? {}).filter(([, set]) => set !== undefined && set !== null && set !== "");
  return `#/${words.map(encodeURIComponent).join("/")}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

/** Return the path words and the query of the address in the address bar. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { words: path.split("/").filter((word) => word !== "").map(unquoted), query: Object.fromEntries(new URLSearchParams(query)) };
}

function unquoted(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

/** Change the query in the address bar without changing the screen. An empty value removes the name. */
export function setQuery(changes) {
  const { words, query } = here();
  history.replaceState(null, "", address(words, { ...query, ...changes }));
}

/** Return the screen for path words, and the words for its braces; undefined without one. */
export function match(screens, words) {
  for (const screen of screens) {
    const parts = screen.path === "" ? [] : screen.path.split("/");
    if (parts.length !== words.length) continue;
    const taken = {};
    const fits = parts.every((part, at) => {
      if (part.startsWith("{")) taken[part.slice(1, -1)] = words[at];
      return part.startsWith("{") || part === words[at];
    });
    if (fits) return { screen, taken };
  }
  return undefined;
}

/** Go to an address. */
export function go(words, query) {
  location.hash = address(words, query);
}
