// What was sent twice, and why: the guest wrote to it.
"use strict";

hikkoshi.views.repeats = (() => {
  const { el, setText, panel, Table } = hikkoshi.dom;
  const { format } = hikkoshi;
  const { Layout, Maxima } = hikkoshi.memory;

  /** Cells in the table. */
  const CELLS = 10;

  class Repeats {
    constructor() {
      const { element } = panel("Sent twice, and why", "repeats");
      this.element = element;
      this.kinds = new Table("Pages that were sent more than once", [
        { name: "why" },
        { name: "pages", number: true },
        { name: "bytes", number: true },
        { name: "of all pages sent", number: true },
      ]);
      this.cells = new Table("Cells with the highest dirty rate", [
        { name: "cell from" },
        { name: "pages dirtied per second", number: true, bar: "dirty" },
      ]);
      this.none = el("p", { class: "note" });
      element.append(this.kinds.element, this.cells.element, this.none);
    }

    update(migration) {
      const { data } = migration.source ?? migration.main;
      const { state } = data;
      this.element.hidden = !migration.source || !state;
      if (this.element.hidden) return;
      const { memory } = data.migration;
      const maxima = this.maxima(data);
      const rows = kinds(data, maxima.stalePages);
      this.kinds.element.hidden = rows.length === 0;
      this.kinds.update(rows);
      const hot = maxima.hottest(CELLS);
      const most = Math.max(1, ...hot.map(({ rate }) => rate));
      this.cells.element.hidden = hot.length === 0;
      this.cells.update(hot.map(({ cell, rate }) => [
        this.layout.start(cell),
        { text: `${format.count(rate)} (${format.rate(rate * memory.page_bytes)})`, part: rate / most },
      ]));
      setText(this.none, rows.length === 0 ? "No page was sent twice." : "");
    }

    /** The maxima of all frames and of the newest state. Frames that are thinned were seen before. */
    maxima({ migration, frames, state }) {
      if (this.layout?.memory !== migration.memory) {
        this.layout = new Layout(migration.memory);
        this.all = new Maxima(this.layout);
        frames.forEach(({ map }) => this.all.add(map));
      }
      this.all.add(state.map);
      return this.all;
    }
  }

  const kinds = ({ migration, state, end }, stale) => {
    const { memory } = migration;
    const sent = state.pages.precopy + state.pages.urgent + state.pages.background;
    const row = (why, pages) => [
      why,
      format.count(pages),
      format.bytes(pages * memory.page_bytes),
      format.share(pages / Math.max(sent, 1)),
    ];
    const rows = [];
    if (state.pages.again > 0) {
      rows.push(row("Sent again in pre-copy: the guest had written to them", state.pages.again));
    }
    if (stale > 0) {
      rows.push(row("At least: sent in pre-copy, and again in post-copy, because the guest had written to them", stale));
    }
    const early = end?.account?.stale_pages ?? 0;
    if (early > 0) rows.push(row("Of those, dirty again already when they were sent", early));
    return rows;
  };

  return Repeats;
})();
