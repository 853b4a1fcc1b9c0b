// The switchover: how long the guest was paused, and where each part of that went.
"use strict";

hikkoshi.views.downtime = (() => {
  const { el, svg, setText, setAttribute, panel, Table } = hikkoshi.dom;
  const { format } = hikkoshi;

  /** The steps of a side with their lengths, in ms. */
  const parts = (steps) => {
    let before = 0;
    return steps.map(({ step, after_pause_ms: end }, index) => {
      const from = before;
      before = Math.max(end, before);
      return { number: index + 1, name: step, from, to: before, took: before - from };
    });
  };

  class Bar {
    constructor(side) {
      this.side = side;
      this.segments = svg("g");
      this.mark = svg("line", { class: "downtime-mark", y1: 0, y2: 26 });
      this.svg = svg("svg", { class: "steps", role: "img", height: 26 }, this.segments, this.mark);
      this.heading = el("h4");
      this.table = new Table("", [
        { name: "step that was done" },
        { name: "took", number: true },
        { name: "done at", number: true },
      ]);
      this.element = el("div", {}, this.heading, this.svg, this.table.element);
      this.drawn = "";
    }

    /** `scale` is the time, in ms, of the whole width. */
    update(list, scale, downtime, zero) {
      this.element.hidden = list.length === 0;
      if (list.length === 0) return;
      const name = this.side === "source" ? "Source" : "Destination";
      setText(this.heading, `${name}: time from ${zero}`);
      setText(this.table.caption, `Steps of the switchover at the ${this.side}`);
      const longest = Math.max(...list.map((part) => part.took));
      const rows = list.map((part) => {
        const row = [
          { text: `${part.number}. ${part.name}`, swatch: colour(part.number) },
          format.duration(part.took),
          format.duration(part.to),
        ];
        row.rowClass = part.took === longest ? "longest" : null;
        return row;
      });
      this.table.update(rows);
      this.draw(list, scale, downtime);
    }

    draw(list, scale, downtime) {
      const drawn = JSON.stringify([list, scale, downtime]);
      if (drawn === this.drawn) return;
      this.drawn = drawn;
      const percent = (ms) => `${((ms / scale) * 100).toFixed(2)}%`;
      this.segments.replaceChildren(...list.flatMap((part) => {
        const title = svg("title", { text: `${part.name}: ${format.duration(part.took)}` });
        const area = svg("rect", {
          x: percent(part.from), width: percent(part.took), y: 2, height: 22, class: colour(part.number),
        }, title);
        if (part.took < scale * 0.05) return [area];
        const middle = percent(part.from + part.took / 2);
        return [area, svg("text", { x: middle, y: 17, text: String(part.number) })];
      }));
      this.mark.toggleAttribute("hidden", downtime === null);
      if (downtime !== null) {
        setAttribute(this.mark, "x1", percent(downtime));
        setAttribute(this.mark, "x2", percent(downtime));
      }
      const text = list.map((part) => `${part.name} ${format.duration(part.took)}`).join(", ");
      setAttribute(this.svg, "aria-label", `Steps of the switchover at the ${this.side}: ${text}`);
    }
  }

  /** As many as the style sheet has: more than a switchover has steps. */
  const COLOURS = 14;

  /** Each step has a colour of its own, and none is that of a state of the map. */
  const colour = (number) => `step-${(number - 1) % COLOURS}`;

  class Downtime {
    constructor() {
      const { element } = panel("Switchover and downtime", "downtime");
      this.element = element;
      this.text = el("p", { class: "figures" });
      this.source = new Bar("source");
      this.destination = new Bar("destination");
      element.append(this.text, this.source.element, this.destination.element);
    }

    update(migration) {
      const steps = (side) => parts(migration.side(side)?.data.state?.switchover ?? []);
      const [source, destination] = [steps("source"), steps("destination")];
      const { downtime } = migration;
      this.element.hidden = downtime === null && source.length + destination.length === 0;
      if (this.element.hidden) return;
      const limit = migration.main.data.migration.max_downtime_ms;
      const state = migration.leading.data.state;
      const paused = state?.guest_at === "paused" && migration.running;
      const how = paused ? "The guest has been paused for" : "The guest was paused for";
      const within = limit === null ? "" : ` (limit: ${format.duration(limit)})`;
      setText(this.text, downtime === null ? "" : `${how} ${format.downtime(downtime)}${within}.`);
      const end = (list) => list.at(-1)?.to ?? 0;
      const scale = Math.max(end(source), end(destination), downtime?.ms ?? 0, 0.001);
      // The mark is where the guest likely ran again, on the time axis of the source.
      const isSource = downtime !== null && downtime.bound !== "at least";
      const mark = isSource ? (downtime.likely ?? downtime.ms) : null;
      this.source.update(source, scale, mark, "the pause");
      this.destination.update(destination, scale, null, "the source's first message after the pause");
    }
  }

  return Downtime;
})();
