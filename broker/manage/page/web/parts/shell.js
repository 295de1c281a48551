// The frame around the screens: navigation, page header, and the keys that work on every screen.

import { button, h, icon, mark, put, say } from "./dom.js";
import { change, get, isAbort } from "./api.js";
import { listen, onKey, showKeys } from "./keyboard.js";
import { follow, onGone, onState, start, togglePause } from "./live.js";
import { menu } from "./menu.js";
import { chooseVhost, learnVhosts, mayAs, reader } from "./reader.js";
import { address, go, here, match } from "./router.js";
import { selectOf } from "./form.js";
import { count, duration, moment } from "./format.js";
import { nextTheme, theme } from "./theme.js";
import { toast, toastError } from "./toast.js";
import { notice } from "./panels.js";
import { View } from "./view.js";

const LIVE_TEXT = { live: "Live", waiting: "Connecting", lost: "No connection", paused: "Paused" };
const COUNTED = { connections: "connections", channels: "channels", exchanges: "exchanges", queues: "queues" };

/** Show the frame and the screen of the address, and update them from then on. */
export function shell(screens) {
  const offered = screens.filter((screen) => mayAs(screen.needs) && (screen.offered?.() ?? true));
  const links = new Map();
  const counts = new Map();
  const crumbs = h("div", { class: "crumbs" });
  const vhosts = h("span", {});
  const live = h("button", { type: "button", class: "button quiet live", title: "Pause or resume live updates (p)" }, h("span", { class: "live-text" }));
  const look = button(icon("system"), "quiet icon", switchTheme);
  const foot = h("div", { class: "side-foot" }, h("span", { class: "node" }), h("span", {}));
  const gone = h("div", { class: "gone", hidden: true });
  const content = h("main", { class: "content", id: "content" });
  const frame = h(
    "div",
    { class: "shell" },
    h("aside", { class: "side" }, h("a", { class: "brand", href: "#/" }, mark(), "SlotMQ"), navigation(offered, links, counts), foot),
    h("div", { class: "veil", on: { click: () => frame.classList.remove("side-open") } }),
    h(
      "div",
      { class: "main" },
      h(
        "header",
        { class: "head" },
        button(icon("menu"), "quiet icon menu-button", () => frame.classList.toggle("side-open"), { "aria-label": "Menu" }),
        crumbs,
        h("div", { class: "head-tools" }, live, vhosts, look, userMenu()),
      ),
      gone,
      content,
    ),
  );
  put(document.body, frame);
  document.querySelectorAll(".toasts").forEach((box) => document.body.append(box));

  let view = null;
  let failed = false; // the screen could not be shown
  const render = () => {
    frame.classList.remove("side-open");
    view?.leave();
    failed = false;
    const { words, query } = here();
    const found = match(offered, words);
    put(content);
    window.scrollTo(0, 0);
    view = new View(content, { crumbs }, found?.taken ?? {}, query);
    const noun = words[0] ?? "";
    for (const [path, link] of links) path === noun ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    if (!found) {
      view.title("Not found");
      view.show(notice("plain", "There is no such screen", "The address is wrong, or your tags do not allow the screen."));
      return;
    }
    view.title(found.screen.title);
    const [mine, opened] = [view, location.hash];
    Promise.resolve(found.screen.open(view)).catch((error) => {
      if (isAbort(error)) return;
      failed = view === mine;
      content.append(notice("bad", "This screen cannot be shown", error.message));
    }).finally(() => {
      if (view === mine) content.dataset.shown = opened; // tests wait for this
    });
  };

  function switchTheme() {
    nextTheme();
    showTheme();
  }
  function showTheme() {
    const name = theme();
    put(look, icon({ light: "sun", dark: "moon", system: "system" }[name]));
    look.title = `Theme: ${name} (t)`;
    look.setAttribute("aria-label", `Theme: ${name}`);
  }
  function showVhosts() {
    if (reader.vhosts.length < 2) return put(vhosts);
    const options = [["", "All vhosts"], ...reader.vhosts.map((name) => [name, name])];
    const choice = selectOf(options, { "aria-label": "Vhost", value: reader.vhost });
    choice.addEventListener("change", () => {
      chooseVhost(choice.value);
      render();
    });
    return put(vhosts, choice);
  }

  live.addEventListener("click", togglePause);
  onState((state) => {
    live.dataset.state = state;
    say(live.firstChild, LIVE_TEXT[state]);
  });
  onGone((since) => {
    frame.classList.toggle("is-gone", since > 0);
    gone.hidden = since === 0;
    put(gone, since > 0 && notice("bad", `The broker has not answered since ${moment(since)}`, "The page shows the last known data, and continues automatically when the broker answers."));
    if (since === 0 && failed) render();
  });
  follow("overview", (totals) => {
    for (const [path, name] of Object.entries(COUNTED)) if (counts.has(path)) say(counts.get(path), totals[name] === undefined ? "" : count(totals[name]));
    say(foot.firstChild, totals.node ?? "");
    foot.firstChild.title = totals.node ?? "";
    say(foot.lastChild, totals.version ? `${totals.version} · up ${duration(totals.uptime_ms)}` : "");
  });
  listen();
  const everywhere = { group: "Everywhere" };
  for (const screen of offered) if (screen.key) onKey(`g ${screen.key}`, screen.title, () => go(screen.path === "" ? [] : [screen.path]), { group: "Go to" });
  onKey("?", "Keys", showKeys, everywhere);
  onKey("t", "Theme", switchTheme, everywhere);
  onKey("p", "Pause or resume live updates", togglePause, everywhere);
  onKey("u", "One level up", () => go(here().words.length > 1 ? [here().words[0]] : []), everywhere);
  onKey("Escape", "", () => frame.classList.remove("side-open"), everywhere);
  window.addEventListener("hashchange", render);
  window.addEventListener("slotmq-vhosts", () => learnVhosts().then(showVhosts, toastError));
  window.addEventListener("slotmq-refused", askAgain);
  showTheme();
  showVhosts();
  start();
  render();
}

async function askAgain() {
  try {
    await get(["whoami"]);
  } catch (error) {
    if (error.status === 401) location.reload(); // the session has ended: show the login form
  }
}

function navigation(screens, links, counts) {
  const nav = h("nav", { class: "nav", "aria-label": "Screens" });
  let group = null;
  for (const screen of screens.filter((one) => one.key)) {
    if (screen.group && screen.group !== group) nav.append(h("div", { class: "nav-group" }, screen.group));
    group = screen.group ?? null;
    const counted = h("span", { class: "count" });
    const link = h("a", { href: address(screen.path === "" ? [] : [screen.path]) }, screen.title, counted);
    links.set(screen.path, link);
    counts.set(screen.path, counted);
    nav.append(link);
  }
  return nav;
}

function userMenu() {
  const out = async () => {
    try {
      await change("DELETE", ["session"]);
      toast("Logged out");
      location.reload();
    } catch (error) {
      toastError(error);
    }
  };
  return menu(`User ${reader.name}`, icon("user"), () => [
    `${reader.name} · ${[...reader.tags][0] ?? "no tags"}`,
    { label: "Keys", hint: "?", press: showKeys },
    null,
    { label: "Log out", press: out },
  ]);
}
