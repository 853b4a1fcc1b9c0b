// Everything about one migration.
"use strict";

hikkoshi.Sections = (() => {
  const { el } = hikkoshi.dom;

  class Sections {
    constructor() {
      const { views } = hikkoshi;
      this.summary = new views.summary();
      const main = [views.memoryMap, views.rates, views.latency, views.course].map((View) => new View());
      const side = [
        views.handover,
        views.downtime,
        views.disks,
        views.rounds,
        views.repeats,
        views.outages,
      ].map((View) => new View());
      this.views = [this.summary, ...main, ...side];
      const column = (name, list) => el("div", { class: name }, ...list.map((view) => view.element));
      this.element = el("article", { class: "migration" },
        this.summary.element,
        el("div", { class: "columns" }, column("main-column", main), column("side-column", side)));
    }

    update(migration) {
      for (const view of this.views) view.update(migration);
    }
  }

  return Sections;
})();
