// Times without links after the handover.
"use strict";

hikkoshi.views.outages = (() => {
  const { panel, Table } = hikkoshi.dom;
  const { format } = hikkoshi;

  class Outages {
    constructor() {
      const { element } = panel("Outages", "outages");
      this.element = element;
      this.table = new Table("Times without links after the handover", [
        { name: "links lost at" },
        { name: "up again at", number: true },
        { name: "took", number: true },
      ]);
      element.append(this.table.element);
    }

    update(migration) {
      const { data } = migration.leading;
      const outages = data.state?.outages ?? [];
      this.element.hidden = outages.length === 0;
      const now = data.state?.at_ms ?? 0;
      this.table.update(outages.map(({ from_ms: from, before_ms: before = 0, to_ms: to }) => [
        before > 0 ? "before this engine" : format.elapsed(from),
        to === null ? "not yet" : format.elapsed(to),
        `${format.duration((to ?? now) - from + before)}${to === null ? " so far" : ""}`,
      ]));
    }
  }

  return Outages;
})();
