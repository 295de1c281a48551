// A dense table. The server filters, sorts and paginates, or the browser for short lists (rows.js).
// A refresh changes only the cells whose values have changed, so that nothing flickers.

import { button, h, icon, put, say } from "./dom.js";
import { count, value as text } from "./format.js";
import { rowMenu } from "./menu.js";

const FILTER_MS = 180; // after the last key press
const RATES_MS = 1200; // before the second request, because rates are measured between two
const SIZES = [50, 100, 250, 500];

/**
 * Return {element, refresh} of a table.
 *
 * columns: {key, label, unit, look, rank, sort, value(row), show(value, row), title(row)}; `look` is "name", "text",
 *   "number" or "wrap"; rank 2 is hidden on phones, rank 3 on narrow screens; `sort` is the server's name for the column.
 * source(asked, signal): asked {page, size, sort, desc, name, regex}; returns {rows, total, filtered, pages}.
 * id(row), href(row), menu(row) -> items of a menu, picks: [{label, look, press(rows)}] for selected rows.
 */
export function table(view, options) {
  return new Table(view, options);
}

class Table {
  constructor(view, options) {
    this.view = view;
    this.options = { noun: "row", plural: `${options.noun ?? "row"}s`, filter: true, prefix: "", sort: "", desc: false, picks: [], tools: [], live: true, size: 100, ...options };
    const { prefix } = this.options;
    const kept = (name) => view.query[prefix + name];
    this.asked = {
      page: Number(kept("page")) || 1,
      size: Number(kept("size")) || this.options.size,
      sort: kept("sort") ?? this.options.sort,
      desc: kept("sort") === undefined ? this.options.desc : kept("desc") === "1",
      name: kept("name") ?? "",
      regex: kept("regex") === "1",
    };
    this.rows = new Map(); // id -> {tr, row, cells}
    this.chosen = new Set();
    this._build();
    if (this.options.live) {
      view.onTick(() => this.refresh());
      const second = setTimeout(() => this.refresh().catch(() => {}), RATES_MS);
      view.signal.addEventListener("abort", () => clearTimeout(second));
    }
    this.refresh().catch((error) => this._fail(error));
  }

  /** Load the page again and show it. */
  async refresh() {
    const asking = (this._asking = (this._asking ?? 0) + 1);
    const found = await this.options.source({ ...this.asked }, this.view.signal);
    if (asking !== this._asking) return; // a later request was faster
    this._show(found);
  }

  _build() {
    const { columns, menu, picks, filter, tools } = this.options;
    this.count = h("span", { class: "total" });
    this.picked = h("span", { class: "row", hidden: true });
    this.error = h("div", { class: "notice bad", role: "alert", hidden: true });
    this.body = h("tbody", {});
    this.all = h("input", { type: "checkbox", "aria-label": "Choose all on this page", on: { change: () => this._chooseAll() } });
    this.heads = columns.map((column) => this._head(column));
    const head = h("tr", {}, picks.length ? h("th", { class: "pick rank-2" }, this.all) : null, this.heads, menu ? h("th", {}, h("span", { class: "visually-hidden" }, "Actions")) : null);
    this.frame = h("div", { class: "table-frame" }, h("table", { class: "table" }, h("thead", {}, head), this.body));
    this.pages = h("div", { class: "pages" });
    this.filterBox = filter ? this._filter(this.options.plural) : null;
    this.tools = h("div", { class: "table-tools" }, this.filterBox, this.count, this.picked, h("span", { class: "push" }), tools);
    this.element = h("div", { class: "stack tight" }, this.tools, this.error, this.frame, this.pages);
    this._order();
    const { view } = this;
    if (filter) view.onKey("/", "Filter", () => this.input.focus());
    view.onKey("j", "Next row", () => this._step(1));
    view.onKey("k", "Previous row", () => this._step(-1));
    view.onKey("]", "Next page", () => this._page(this.asked.page + 1));
    view.onKey("[", "Previous page", () => this._page(this.asked.page - 1));
    if (picks.length) view.onKey("x", "Choose the row", () => this._chooseFocused());
  }

  _filter(nouns) {
    let timer = 0;
    const take = () => {
      clearTimeout(timer);
      timer = setTimeout(() => this._ask({ name: this.input.value, page: 1 }), FILTER_MS);
    };
    this.input = h("input", { class: "input", type: "search", placeholder: `Filter ${nouns} by name`, "aria-label": `Filter ${nouns} by name`, spellcheck: "false", autocomplete: "off", value: this.asked.name, on: { input: take } });
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.input.value) {
        this.input.value = "";
        take();
        event.stopPropagation();
      } else if (event.key === "Enter" || event.key === "ArrowDown") this._step(1);
    });
    const regex = h("input", { type: "checkbox", checked: this.asked.regex, on: { change: () => this._ask({ regex: regex.checked, page: 1 }) } });
    return [h("span", { class: "filter" }, this.input, h("kbd", {}, "/")), h("label", { class: "check soft small" }, regex, h("span", {}, "regex"))];
  }

  _head(column) {
    const look = `${column.look ?? "text"} rank-${column.rank ?? 1}`;
    const label = [column.label, column.unit && h("span", { class: "unit" }, ` ${column.unit}`)];
    if (!column.sort) return h("th", { class: look, scope: "col", title: column.hint }, label);
    const press = () => {
      const desc = this.asked.sort === column.sort ? !this.asked.desc : column.look === "number";
      this._ask({ sort: column.sort, desc, page: 1 });
    };
    const th = h("th", { class: look, scope: "col", title: column.hint }, h("button", { type: "button", on: { click: press } }, h("span", {}, label)));
    th.sortName = column.sort;
    return th;
  }

  _order() {
    for (const th of this.heads) {
      if (th.sortName && th.sortName === this.asked.sort) th.setAttribute("aria-sort", this.asked.desc ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
  }

  _page(page) {
    if (page >= 1 && page <= (this.found?.pages ?? 1)) this._ask({ page });
  }

  async _ask(changes) {
    Object.assign(this.asked, changes);
    const { prefix, sort, desc, size } = this.options;
    const { asked } = this;
    const ordered = asked.sort !== sort || asked.desc !== desc;
    this.view.keep({
      [`${prefix}page`]: asked.page > 1 ? asked.page : "",
      [`${prefix}size`]: asked.size === size ? "" : asked.size,
      [`${prefix}sort`]: ordered ? asked.sort : "",
      [`${prefix}desc`]: ordered && asked.desc ? 1 : "",
      [`${prefix}name`]: asked.name,
      [`${prefix}regex`]: asked.regex ? 1 : "",
    });
    this._order();
    this.frame.classList.add("loading");
    try {
      await this.refresh();
    } catch (error) {
      this._fail(error);
    }
    this.frame.classList.remove("loading");
  }

  _fail(error) {
    if (this.view.signal.aborted) return;
    put(this.error, h("strong", {}, "This list cannot be shown"), h("span", {}, error.message));
    this.error.hidden = false;
  }

  _show(found) {
    this.found = found;
    this.error.hidden = true;
    const kept = new Map();
    const shown = found.rows.map((row) => {
      const id = this.options.id(row);
      const entry = this.rows.get(id) ?? this._row(id);
      kept.set(id, entry);
      this._fill(entry, row);
      return entry.tr;
    });
    this.rows = kept;
    for (const id of [...this.chosen]) if (!kept.has(id)) this.chosen.delete(id);
    const current = [...this.body.children];
    if (shown.length !== current.length || shown.some((tr, at) => tr !== current[at])) {
      const focused = document.activeElement?.closest?.("tr");
      this.body.replaceChildren(...shown);
      if (focused && shown.includes(focused)) focused.focus({ preventScroll: true });
    }
    if (shown.length === 0) this.body.replaceChildren(this._nothing(found));
    say(this.count, this._total(found));
    this._pager(found);
    this._picks();
  }

  _total({ total, filtered }) {
    const noun = total === 1 ? this.options.noun : this.options.plural;
    return filtered === total ? `${count(total)} ${noun}` : `${count(filtered)} of ${count(total)} ${noun}`;
  }

  _nothing({ total }) {
    const across = this.options.columns.length + 2;
    const { empty, emptyHint, noun, plural } = this.options;
    const text = total > 0 ? [h("strong", {}, `No ${noun} matches the filter`)] : [h("strong", {}, empty ?? `No ${plural}`), emptyHint && h("span", {}, emptyHint)];
    return h("tr", {}, h("td", { colspan: across }, h("div", { class: "empty" }, text)));
  }

  _row(id) {
    const { columns, menu, picks } = this.options;
    const entry = { id, row: null, values: [], cells: [], tr: null, box: null };
    entry.cells = columns.map((column) => h("td", { class: `${column.look ?? "text"} rank-${column.rank ?? 1}` }));
    if (picks.length) entry.box = h("input", { type: "checkbox", "aria-label": "Choose this row", on: { change: () => this._choose(entry, entry.box.checked) } });
    entry.tr = h(
      "tr",
      { tabindex: "-1" },
      entry.box && h("td", { class: "pick rank-2" }, entry.box),
      entry.cells,
      menu && h("td", { class: "actions" }, rowMenu("Actions", () => menu(entry.row))),
    );
    entry.tr.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target === entry.tr) entry.tr.querySelector("a")?.click();
      else if (event.key === "ArrowDown") this._step(1);
      else if (event.key === "ArrowUp") this._step(-1);
      else return;
      event.preventDefault();
    });
    return entry;
  }

  _fill(entry, row) {
    entry.row = row;
    entry.tr.classList.toggle("chosen", this.chosen.has(entry.id));
    if (entry.box) entry.box.checked = this.chosen.has(entry.id);
    this.options.columns.forEach((column, at) => {
      const value = column.value ? column.value(row) : row[column.key];
      const compared = typeof value === "object" ? JSON.stringify(value) : value;
      if (at in entry.values && entry.values[at] === compared) return;
      entry.values[at] = compared;
      const cell = entry.cells[at];
      put(cell, column.show ? column.show(value, row) : text(value));
      if (column.look === "number") cell.classList.toggle("zero", value === 0);
      const title = column.title ? column.title(row) : ["name", "text"].includes(column.look) ? cell.textContent : "";
      if (title) cell.title = title;
    });
  }

  _pager({ pages, filtered }) {
    this.pages.hidden = filtered <= Math.min(this.asked.size, SIZES[0]) && pages <= 1;
    if (this.pages.hidden) return;
    const { page, size } = this.asked;
    const stamp = `${page}/${pages}/${size}/${filtered}`;
    if (this._stamp === stamp) return;
    this._stamp = stamp;
    const turn = (label, name, to, off) => button(icon(name), "small icon", () => this._page(to), { disabled: off, "aria-label": label, title: label });
    const sizes = h("select", { class: "select", "aria-label": "Rows on a page", on: { change: () => this._ask({ size: Number(sizes.value), page: 1 }) } }, SIZES.map((one) => h("option", { value: one, selected: one === size }, `${one} rows`)));
    put(
      this.pages,
      turn("Previous page", "left", page - 1, page <= 1),
      h("span", {}, `${count((page - 1) * size + 1)}–${count(Math.min(page * size, filtered))} of ${count(filtered)}`),
      turn("Next page", "right", page + 1, page >= pages),
      h("span", { class: "push" }, sizes),
    );
  }

  _step(by) {
    const rows = [...this.rows.values()].map((entry) => entry.tr);
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement?.closest?.("tr"));
    const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  _chooseFocused() {
    const entry = [...this.rows.values()].find((one) => one.tr === document.activeElement);
    if (entry) this._choose(entry, !this.chosen.has(entry.id));
  }

  _choose(entry, on) {
    this._mark(entry, on);
    this._picks();
  }

  _chooseAll() {
    const on = this.all.checked; // _picks changes the box
    for (const entry of this.rows.values()) this._mark(entry, on);
    this._picks();
  }

  _mark(entry, on) {
    on ? this.chosen.add(entry.id) : this.chosen.delete(entry.id);
    this._fill(entry, entry.row);
  }

  _picks() {
    const { picks } = this.options;
    if (!picks.length) return;
    this.all.checked = this.chosen.size > 0 && this.chosen.size === this.rows.size;
    this.all.indeterminate = this.chosen.size > 0 && this.chosen.size < this.rows.size;
    this.picked.hidden = this.chosen.size === 0;
    if (this.chosen.size === 0) return;
    const chosen = () => [...this.chosen].map((id) => this.rows.get(id)?.row).filter(Boolean);
    const done = async (pick) => {
      if (await pick.press(chosen())) this.chosen.clear();
      await this.refresh();
    };
    put(this.picked, h("span", { class: "strong" }, `${count(this.chosen.size)} chosen`), picks.map((pick) => button(pick.label, `small ${pick.look ?? ""}`, () => done(pick))));
  }
}
