// The theme: light, dark, or that of the user's system.

const THEMES = ["system", "light", "dark"];

/** Return the chosen theme: "system", "light" or "dark". */
export function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

/** Choose the next theme and return it. */
export function nextTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("slotmq.theme");
  } else {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("slotmq.theme", next);
  }
  return next;
}
