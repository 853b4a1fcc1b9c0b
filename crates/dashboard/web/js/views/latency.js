// The latency of page requests: the distribution as it grows.
"use strict";

hikkoshi.views.latency = (() => {
  const { el, setText, panel, fold, Table } = hikkoshi.dom;
  const { format } = hikkoshi;

  class Latency {
    constructor() {
      const { element } = panel("Latency of page requests", "latency");
      this.element = element;
      this.names = [];
      this.marks = [];
      this.chart = hikkoshi.chart.bars({
        label: "Number of page requests by latency",
        height: 190,
        colour: "--line-a",
        names: () => this.names,
        marks: () => this.marks,
      });
      this.text = el("p", { class: "figures" });
      this.table = new Table("Page requests by latency, from the fault to the installed page", [
        { name: "at most" },
        { name: "requests", number: true },
        { name: "share", number: true, bar: "plain" },
        { name: "so far", number: true },
      ]);
      this.fold = fold("Table of latencies", this.table.element);
      element.append(this.text, this.chart.element, this.fold);
    }

    update(migration) {
      const { requests } = migration;
      const measured = requests !== null && requests.count > 0 && requests.histogram.length > 0;
      this.element.hidden = !measured;
      if (!measured) return;
      const { count, mean_us, p50_us, p99_us, max_us, histogram } = requests;
      const text = `${format.plural(count, "request")}: mean ${format.micros(mean_us)}, ` +
        `median ${format.micros(p50_us)}, p99 ${format.micros(p99_us)}, slowest ${format.micros(max_us)}`;
      setText(this.text, text);
      this.chart.describe(`Number of page requests by latency. ${text}`);
      const buckets = complete(histogram);
      this.names = buckets.map((bucket) => format.micros(bucket.le_us));
      this.marks = [
        { at: position(buckets, p50_us), name: "median" },
        { at: position(buckets, p99_us), name: "p99" },
      ];
      this.chart.update([buckets.map((_, index) => index), buckets.map((bucket) => bucket.count)]);
      this.showRows(buckets, Math.max(count, 1));
    }

    showRows(buckets, total) {
      let before = 0;
      this.table.update(buckets.map(({ le_us, count }) => {
        before += count;
        return [
          format.micros(le_us),
          format.count(count),
          { text: format.share(count / total), part: count / total },
          format.share(before / total),
        ];
      }));
    }
  }

  /** All powers of two between the first and the last bucket. */
  const complete = (histogram) => {
    const buckets = [];
    for (const bucket of histogram) {
      const last = buckets.at(-1);
      for (let le = (last?.le_us ?? bucket.le_us) * 2; last && le < bucket.le_us && buckets.length < 64; le *= 2) {
        buckets.push({ le_us: le, count: 0 });
      }
      buckets.push(bucket);
    }
    return buckets;
  };

  /** Where a latency is between the bars: a bar begins half a step before its middle. */
  const position = (buckets, micros) => {
    const first = Math.log2(Math.max(buckets[0].le_us, 1));
    return Math.log2(Math.max(micros, 0.5)) - first + 0.5;
  };

  return Latency;
})();
