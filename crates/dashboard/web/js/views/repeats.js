// What was sent twice, and why: the guest wrote to it.
"use strict";

hikkoshi.views.repeats = (() => {
  const { el, setText, panel, Table } = hikkoshi.dom;
  const { format } = hikkoshi;
  const { Layout, hottest } = hikkoshi.memory;

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
        { name: "cell" },
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
      const rows = kinds(data, memory);
      this.kinds.element.hidden = rows.length === 0;
      this.kinds.update(rows);
      const maps = [...data.frames.map(({ map }) => map), state.map];
      const layout = this.layout?.memory === memory ? this.layout : (this.layout = new Layout(memory));
      const hot = hottest(layout, maps, CELLS);
      const most = Math.max(1, ...hot.map(({ rate }) => rate));
      this.cells.element.hidden = hot.length === 0;
      this.cells.update(hot.map(({ cell, rate }) => [
        layout.name(cell),
        { text: `${format.count(rate)} (${format.rate(rate * memory.page_bytes)})`, part: rate / most },
      ]));
      setText(this.none, rows.length === 0 ? "No page was sent twice." : "");
    }
  }

  const kinds = ({ state, frames, end }, memory) => {
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
    const stale = stalePages([...frames.map(({ map }) => map), state.map], memory);
    if (stale > 0) {
      rows.push(row("At least: sent in pre-copy, and again in post-copy, because the guest had written to them", stale));
    }
    const early = end?.account?.stale_pages ?? 0;
    if (early > 0) rows.push(row("Of those, dirty again already when they were sent", early));
    return rows;
  };

  /**
   * Pages that were sent in pre-copy and are sent in post-copy, too. Maps count by cell, so this is
   * what the pages of a cell do not suffice for: at least so many.
   */
  const stalePages = (maps, memory) => {
    const layout = new Layout(memory);
    const both = (map) => {
      let pages = 0;
      for (let cell = 0; cell < layout.cells; cell += 1) {
        const at = (list) => list[cell] ?? 0;
        const later = at(map.missing) + at(map.by_request) + at(map.background);
        if (later > 0) pages += Math.max(at(map.sent) + later - layout.pages(cell), 0);
      }
      return pages;
    };
    return Math.max(0, ...maps.map(both));
  };

  return Repeats;
})();
