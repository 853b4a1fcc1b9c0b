// Rates over time.
"use strict";

hikkoshi.views.rates = (() => {
  const { el, panel, fold, PagedTable } = hikkoshi.dom;
  const { format } = hikkoshi;
  const { lines } = hikkoshi.chart;
  const { lastTime } = hikkoshi.migration;

  /** Samples of both sides that are so near, in ms, belong together: half the least distance. */
  const NEAR = 50;

  /** About the width of the charts. */
  const PIXELS = 600;

  let keys = 0;

  class Rates {
    constructor() {
      const { element } = panel("Rates over time", "rates");
      this.element = element;
      this.bands = [];
      const common = { key: `rates-${(keys += 1)}`, bands: () => this.bands };
      this.traffic = lines({
        ...common,
        label: "Bytes sent and dirtied per second over time",
        height: 190,
        format: format.rate,
        steps: "binary",
        series: [
          { name: "sent", colour: "--line-a" },
          { name: "dirtied", colour: "--line-b", dash: [7, 4] },
        ],
      });
      this.missing = lines({
        ...common,
        label: "Missing pages over time",
        height: 130,
        format: format.count,
        series: [{ name: "missing pages", colour: "--line-c" }],
      });
      this.requests = lines({
        ...common,
        label: "Page requests per second over time",
        height: 130,
        format: format.number,
        series: [
          { name: "page requests per second", colour: "--line-a" },
          { name: "without an answer", colour: "--line-b", dash: [7, 4] },
        ],
      });
      this.latency = lines({
        ...common,
        label: "Mean latency of page requests over time",
        height: 130,
        format: format.micros,
        series: [{ name: "mean latency", colour: "--line-d", points: true }],
      });
      this.table = new PagedTable("Rates over time", [
        { name: "time" },
        { name: "phase" },
        { name: "sent", number: true },
        { name: "dirtied", number: true },
        { name: "missing pages", number: true },
        { name: "requests/s", number: true },
        { name: "without answer", number: true },
        { name: "mean latency", number: true },
      ], "samples");
      this.fold = fold("Table of rates", this.table.element);
      this.fold.addEventListener("toggle", () => this.shown && this.updateTable(this.shown));
      const key = el("ul", { class: "band-key" },
        el("li", {}, el("span", { class: "swatch band-paused" }), " switchover"),
        el("li", {}, el("span", { class: "swatch band-postcopy" }), " post-copy"),
        el("li", {}, el("span", { class: "swatch band-outage" }), " links lost"));
      this.postcopy = el("div", {}, this.missing.element, this.requests.element, this.latency.element);
      element.append(this.traffic.element, this.postcopy, key, this.fold);
    }

    update(migration) {
      if (this.isDrawn(migration)) return;
      this.shown = migration;
      const rows = merged(migration);
      this.element.hidden = rows.length === 0;
      if (rows.length === 0) return;
      this.bands = bands(migration);
      const times = rows.map((row) => row.time);
      const column = (name) => rows.map((row) => row[name]);
      this.traffic.update([times, column("sent"), column("dirtied")]);
      this.postcopy.hidden = rows.every((row) => row.missing === null && !row.requests);
      // Only the destination measures page requests.
      const measured = migration.destination !== null;
      this.requests.element.hidden = !measured;
      this.latency.element.hidden = !measured;
      if (!this.postcopy.hidden) {
        this.missing.update([times, column("missing")]);
        this.requests.update([times, column("requests"), column("waiting")]);
        this.latency.update([times, column("latency")]);
      }
      if (this.fold.open) this.updateTable(migration);
    }

    /** Whether what is new would move the charts by less than a pixel. */
    isDrawn(migration) {
      const { id, main, running } = migration;
      const last = main.data.samples.at(-1)?.at_ms ?? 0;
      const whole = migration.recordings.filter(({ short }) => !short).length;
      const { drawn } = this;
      const same = drawn?.id === id && drawn.main === main && drawn.running === running && drawn.whole === whole;
      if (same && last >= drawn.last && last - drawn.last <= last / PIXELS) return true;
      this.drawn = { id, main, running, whole, last };
      return false;
    }

    updateTable(migration) {
      const rows = merged(migration);
      this.table.update(rows.length, (index) => {
        const row = rows[index];
        return [
          format.elapsed(row.time),
          hikkoshi.migration.PHASES[row.phase] ?? row.phase,
          format.rate(row.sent),
          format.rate(row.dirtied),
          format.count(row.missing),
          format.number(row.requests),
          format.count(row.waiting),
          format.micros(row.latency),
        ];
      });
    }
  }

  /**
   * The samples of both sides on the time axis of the source. What only the destination measures
   * comes from its last sample up to then.
   */
  const merged = (migration) => {
    const { main, destination } = migration;
    const pageBytes = main.data.migration.memory.page_bytes;
    const other = destination && destination !== main ? destination : null;
    const offset = other ? migration.offset(other) : 0;
    const others = other?.data.samples ?? [];
    let next = 0;
    return main.data.samples.map((sample) => {
      while (next < others.length && others[next].at_ms + offset <= sample.at_ms + NEAR) next += 1;
      const measured = destination === main ? sample : others[next - 1];
      const dirty = sample.dirty_pages_per_second;
      return {
        time: sample.at_ms,
        phase: sample.phase,
        sent: sample.bytes_per_second,
        dirtied: dirty === null ? null : dirty * pageBytes,
        missing: (destination ? measured : sample)?.missing_pages ?? null,
        requests: measured?.requests_per_second ?? null,
        waiting: measured?.waiting_pages ?? null,
        latency: measured?.latency_us ?? null,
      };
    });
  };

  /** Times to mark: paused, post-copy, outages. */
  const bands = (migration) => {
    const { main } = migration;
    const { samples } = main.data;
    const end = lastTime(main);
    const list = [];
    samples.forEach((sample, index) => {
      const colour = { switchover: "--band-paused", postcopy: "--band-postcopy" }[sample.phase];
      const to = samples[index + 1]?.at_ms ?? end;
      const last = list.at(-1);
      if (!colour) return;
      if (last?.colour === colour && last.to === sample.at_ms) last.to = to;
      else list.push({ from: sample.at_ms, to, colour });
    });
    for (const { from_ms: from, to_ms: to } of main.data.state?.outages ?? []) {
      list.push({ from, to: to ?? end, colour: "--band-outage" });
    }
    return list;
  };

  return Rates;
})();
