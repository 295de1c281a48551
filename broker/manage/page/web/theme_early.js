// Sets the theme before the first paint; the module parts/theme.js changes it.
{
  const chosen = localStorage.getItem("slotmq.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
