// Charts over time and histograms: uPlot, with the colours of the style sheet.
"use strict";

hikkoshi.chart = (() => {
  const { el, setAttribute } = hikkoshi.dom;
  const { theme } = hikkoshi;

  const FONT = "11px system-ui, sans-serif";

  const axis = (more) => ({
    stroke: () => theme.colour("--dim"),
    font: FONT,
    grid: { stroke: () => theme.colour("--grid"), width: 1 },
    ticks: { stroke: () => theme.colour("--grid"), width: 1, size: 4 },
    ...more,
  });

  /** From zero to a bit above the highest value. */
  const fromZero = (_chart, _low, high) => [0, high > 0 ? high * 1.08 : 1];

  /** Steps of an axis of bytes are powers of two, those of others 1, 2 and 5. */
  const DECIMAL = [1, 2, 5].flatMap((step) => Array.from({ length: 14 }, (_, power) => step * 10 ** (power - 1)));
  const STEPS = {
    decimal: DECIMAL.sort((a, b) => a - b),
    binary: Array.from({ length: 60 }, (_, power) => 2 ** power),
  };

  /** A chart that fills the width of its element. */
  class Chart {
    /**
     * `label` is what a screen reader says, `options` are uPlot's, and `scaled` makes what is drawn
     * of the data.
     */
    constructor(label, height, options, scaled = (data) => data) {
      this.height = height;
      this.options = options;
      this.scaled = scaled;
      this.plot = null;
      this.data = null;
      this.element = el("div", { class: "chart", role: "img", "aria-label": label });
      this.width = 0;
      // In the next frame: a chart that changes its size at once would be observed again.
      this.observer = new ResizeObserver(() => requestAnimationFrame(() => this.resize()));
      this.observer.observe(this.element);
      theme.onChange(() => this.rebuild());
    }

    /**
     * Arrow keys move the cursor from one time to the next, as pointing does. `spoken(plot, index)`
     * is what a screen reader says then.
     */
    useKeys(spoken) {
      const set = (name, value) => setAttribute(this.element, name, value);
      set("role", "slider");
      set("tabindex", 0);
      set("aria-valuemin", 0);
      let index = null;
      const choose = (next) => {
        const times = this.data[0];
        index = next === null ? null : Math.min(Math.max(next, 0), times.length - 1);
        const left = index === null ? -10 : this.plot.valToPos(times[index], "x");
        this.plot.setCursor({ left, top: index === null ? -10 : 10 }, true, true);
        set("aria-valuemax", times.length - 1);
        set("aria-valuenow", index ?? 0);
        set("aria-valuetext", index === null ? null : spoken(this.plot, index));
      };
      this.element.addEventListener("keydown", (event) => {
        if (!this.plot || this.data[0].length === 0) return;
        const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
        if (event.key === "Escape") {
          choose(null);
        } else if (event.key in steps) {
          event.preventDefault();
          choose(index === null ? 0 : index + steps[event.key]);
        }
      });
    }

    describe(text) {
      setAttribute(this.element, "aria-label", text);
    }

    update(data) {
      this.data = this.scaled(data);
      this.show();
    }

    show() {
      if (this.width === 0 || this.data === null) return;
      if (this.plot) {
        this.plot.setData(this.data);
      } else {
        const size = { width: this.width, height: this.height };
        this.plot = new uPlot({ ...size, ...this.options }, this.data, this.element);
      }
    }

    /** Draws with the present colours, the legend's included. */
    rebuild() {
      this.plot?.destroy();
      this.plot = null;
      this.show();
    }

    resize() {
      const width = Math.floor(this.element.clientWidth);
      if (width === this.width || width === 0) return;
      this.width = width;
      if (this.plot) this.plot.setSize({ width, height: this.height });
      else this.show();
    }
  }

  /** Draws the times in which something was the case behind a chart: `[{from, to, colour}]`. */
  const drawBands = (plot, bands) => {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const { from, to, colour } of bands) {
      const left = Math.max(plot.valToPos(from, "x", true), bbox.left);
      const right = Math.min(plot.valToPos(to, "x", true), bbox.left + bbox.width);
      if (right < left) continue;
      ctx.fillStyle = theme.colour(colour);
      ctx.fillRect(left, bbox.top, Math.max(right - left, devicePixelRatio), bbox.height);
    }
    ctx.restore();
  };

  /**
   * Lines over time. `series`: `{name, colour, dash, points, format}`. `points`: single values
   * between unknown ones are visible. `format` is that of the axis.
   * `bands()` gives the times to mark. Charts of one `key` show the same time under the cursor.
   */
  const lines = ({ label, height, series, format, key, bands, steps = "decimal" }) => {
    const { elapsed } = hikkoshi.format;
    const options = {
      cursor: { sync: { key }, points: { size: 6 }, drag: { x: false, y: false } },
      legend: { live: true },
      scales: { x: { time: false }, y: { range: fromZero } },
      axes: [
        axis({ values: (_plot, times) => times.map((time) => elapsed(time)), size: 22, space: 70,
          incrs: [100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 144e5, 432e5, 864e5] }),
        axis({ values: (_plot, values) => values.map(format), size: 74, space: 28, incrs: STEPS[steps] }),
      ],
      series: [
        { label: "time", value: (_plot, time) => (time === null ? "–" : elapsed(time)) },
        ...series.map(({ name, colour, dash, points, format: own }) => ({
          label: name,
          stroke: () => theme.colour(colour),
          width: 1.75,
          dash,
          points: { show: points ?? false, size: 4, fill: () => theme.colour(colour) },
          value: (_plot, value) => (own ?? format)(value),
        })),
      ],
      hooks: { drawClear: [(plot) => drawBands(plot, bands())] },
    };
    const chart = new Chart(label, height, options);
    chart.useKeys((plot, index) => {
      const values = series.map(({ name, format: own }, at) => `${name} ${(own ?? format)(plot.data[at + 1][index])}`);
      return [elapsed(plot.data[0][index]), ...values].join(", ");
    });
    return chart;
  };

  /** Counts are shown by their logarithm, so that a single one beside thousands is visible. */
  const logarithm = (count) => Math.log10(1 + count);

  /** The counts at the axis of `bars`. */
  const POWERS = [0, ...Array.from({ length: 15 }, (_, power) => 10 ** power)];

  /**
   * Bars next to each other, with a logarithmic scale. `names()` gives what stands below them,
   * `marks()` vertical lines.
   */
  const bars = ({ label, height, colour, names, marks }) => {
    const { count } = hikkoshi.format;
    const options = {
      cursor: { show: false },
      legend: { show: false },
      scales: {
        x: { time: false, range: (_plot, low, high) => [low - 0.6, high + 0.6] },
        y: { range: fromZero },
      },
      axes: [
        axis({
          splits: () => names().map((_, index) => index),
          values: (plot, places) => {
            const every = Math.max(1, Math.ceil((places.length * 56) / Math.max(plot.width - 60, 1)));
            return places.map((place) => (place % every === 0 ? names()[place] : ""));
          },
          grid: { show: false },
          size: 24,
        }),
        axis({
          splits: (_plot, _axis, _low, high) => POWERS.map(logarithm).filter((place) => place <= high),
          values: (_plot, places) => places.map((place) => count(10 ** place - 1)),
          size: 58,
        }),
      ],
      series: [
        {},
        {
          stroke: () => theme.colour(colour),
          fill: () => theme.colour(colour),
          width: 0,
          points: { show: false },
          paths: uPlot.paths.bars({ size: [0.84, 80] }),
        },
      ],
      hooks: { draw: [(plot) => drawMarks(plot, marks())] },
    };
    return new Chart(label, height, options, ([places, counts]) => [places, counts.map(logarithm)]);
  };

  /** Vertical lines with a name: `[{at, name}]`. */
  const drawMarks = (plot, marks) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = theme.colour("--text");
    ctx.fillStyle = theme.colour("--text");
    ctx.lineWidth = devicePixelRatio;
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    marks.forEach(({ at, name }, index) => {
      const x = Math.round(plot.valToPos(at, "x", true));
      ctx.setLineDash(index % 2 === 0 ? [] : [4 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const near = x > bbox.left + bbox.width * 0.8;
      ctx.textAlign = near ? "right" : "left";
      ctx.fillText(name, x + (near ? -4 : 4) * devicePixelRatio, bbox.top + index * 13 * devicePixelRatio);
    });
    ctx.restore();
  };

  return { Chart, lines, bars };
})();
