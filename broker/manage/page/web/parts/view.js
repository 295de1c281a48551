// The context of a screen: where it draws, its address, and subscriptions that end when the user leaves it.

import { h, put } from "./dom.js";
import { isAbort } from "./api.js";
import { follow } from "./live.js";
import { onKey } from "./keyboard.js";
import { address, setQuery } from "./router.js";
import { toastError } from "./toast.js";

/** A screen that is shown. `root` is where it draws; `signal` aborts when the user leaves it. */
export class View {
  constructor(root, head, words, query) {
    this.root = root;
    this.words = words; // the words for the braces of the screen's path
    this.query = query;
    this._head = head;
    this._leaving = new AbortController();
    this.signal = this._leaving.signal;
  }

  /** Set the title: crumbs are strings, or [label, path words] for a link. */
  title(...crumbs) {
    const last = crumbs.length - 1;
    put(this._head.crumbs, crumbs.flatMap((crumb, at) => {
      const shown = Array.isArray(crumb) ? h("a", { href: address(crumb[1]) }, crumb[0]) : h("span", { class: at === last ? "last" : "" }, crumb);
      return at === 0 ? [shown] : [h("span", { class: "sep", "aria-hidden": "true" }, "/"), shown];
    }));
    const name = crumbs[last];
    document.title = `${Array.isArray(name) ? name[0] : name} · SlotMQ`;
  }

  /** Return this view for a part of the screen: its subscriptions end with `signal`. */
  within(signal) {
    return Object.assign(Object.create(View.prototype), this, { signal });
  }

  /** Replace the content of the screen. */
  show(...children) {
    put(this.root, children);
  }

  /** Keep values in the query of the address. */
  keep(changes) {
    Object.assign(this.query, changes);
    setQuery(changes);
  }

  /** Call a function at each tick of the live numbers, one call at a time; an error is shown once. */
  onTick(run) {
    let busy = false;
    let failed = "";
    follow("tick", async () => {
      if (busy) return;
      busy = true;
      try {
        await run();
        failed = "";
      } catch (error) {
        if (!isAbort(error) && !this.signal.aborted && error.message !== failed) toastError(error);
        failed = error.message;
      } finally {
        busy = false;
      }
    }, this.signal);
  }

  /** Call a function with each value of a topic of the live stream. */
  onLive(topic, take) {
    follow(topic, take, this.signal);
  }

  /** Register a shortcut while the screen is shown. */
  onKey(pressed, label, press) {
    onKey(pressed, label, press, { signal: this.signal });
  }

  leave() {
    this._leaving.abort();
  }
}
