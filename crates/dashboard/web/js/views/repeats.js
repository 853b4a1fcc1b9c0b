// What was sent twice, and why; and the ranges that the guest wrote to most.
"use strict";

hikkoshi.views.repeats = (() => {
  const { el, setText, panel, Table } = hikkoshi.dom;
  const { format } = hikkoshi;
  const { Layout, hotRanges } = hikkoshi.memory;

  /** The reasons, in the order of a migration. */
  const REASONS = [
    ["precopy", "Sent again in pre-copy: the guest had written to them"],
    ["stale", "Sent in pre-copy, and again in post-copy: the guest had written to them"],
    ["host_page", "Sent in pre-copy, and again in post-copy: the guest had written to another part of their huge page"],
    ["resent", "Sent in post-copy, and again after the links were lost"],
    ["requested", "Pages of firmware and devices: sent before the guest ran at the destination, and also requested"],
  ];

  class Repeats {
    constructor() {
      const { element } = panel("Sent twice, and why", "repeats");
      this.element = element;
      this.kinds = new Table("Pages that were sent more than once", [
        { name: "why" },
        { name: "pages", number: true },
        { name: "bytes", number: true },
        { name: "of all bytes", number: true },
      ]);
      this.none = el("p", { class: "note" });
      this.ranges = new Table("Ranges that the guest dirtied most", [
        { name: "range" },
        { name: "guest address" },
        { name: "pages dirtied per second", number: true, bar: "dirty" },
        { name: "bytes per second", number: true },
        { name: "a cell's highest rate", number: true },
      ]);
      this.notHot = el("p", { class: "note" });
      element.append(this.kinds.element, this.none, this.ranges.element, this.notHot);
    }

    update(migration) {
      const { source } = migration;
      const state = source?.data.state;
      this.element.hidden = !state;
      if (this.element.hidden) return;
      const { repeats } = state;
      const rows = repeats ? kinds(repeats, state) : [];
      this.kinds.element.hidden = rows.length === 0;
      this.kinds.update(rows);
      const none = repeats
        ? "No page was sent twice."
        : "What was sent twice is not known: another engine has sent pages.";
      setText(this.none, rows.length === 0 ? none : "");
      this.showRanges(source);
    }

    showRanges(source) {
      const { data } = source;
      const { memory } = data.migration;
      if (this.layout?.memory !== memory) this.layout = new Layout(memory);
      const rates = data.dirty_rates;
      const ranges = rates && source.knows("map") ? hotRanges(this.layout, rates) : [];
      const most = Math.max(1, ...ranges.map(({ mean }) => mean));
      this.ranges.element.hidden = ranges.length === 0;
      this.ranges.update(ranges.map(({ name, address, mean, highest }) => [
        name,
        address === null ? format.NONE : `0x${address.toString(16)}`,
        { text: format.count(mean), part: mean / most },
        format.rate(mean * memory.page_bytes),
        format.count(highest),
      ]));
      const measured = (data.dirty_rates?.measured_ms ?? 0) > 0;
      const even = "No range was dirtied at four times the mean rate or more.";
      setText(this.notHot, measured && ranges.length === 0 ? even : "");
    }
  }

  const kinds = (repeats, state) => {
    const { precopy, urgent, background } = state.bytes;
    const sent = Math.max(precopy + urgent + background, 1);
    return REASONS.filter(([name]) => repeats[name].pages > 0).map(([name, why]) => {
      const { pages, bytes } = repeats[name];
      return [why, format.count(pages), format.bytes(bytes), format.share(bytes / sent)];
    });
  };

  return Repeats;
})();
