// The map of the guest's memory: a cell is some pages, filled from the bottom by their states.
"use strict";

hikkoshi.views = {};

hikkoshi.views.memoryMap = (() => {
  const { el, setText, setAttribute, panel, fold, Table, PagedTable } = hikkoshi.dom;
  const { STATES, Layout, cells, names, knows, sum } = hikkoshi.memory;
  const { theme, format } = hikkoshi;

  const GUTTER = 58;
  const HEADING = 17;
  const LARGEST = 22;
  const SMALLEST = 6;
  const HIGHEST = 500;

  /** How many columns (a power of two, so that addresses of rows are round) fit best. */
  const columnsFor = (width, count) => {
    for (const columns of [16, 32, 64, 128]) {
      const size = width / columns;
      if (size <= LARGEST && (size * Math.ceil(count / columns) <= HIGHEST || size < 2 * SMALLEST)) {
        return columns;
      }
    }
    return 128;
  };

  /** Where each cell is drawn. */
  class Grid {
    constructor(layout, width) {
      this.layout = layout;
      this.columns = columnsFor(width - GUTTER, layout.cells);
      this.size = Math.min(Math.floor((width - GUTTER - 1) / this.columns), LARGEST);
      this.groups = layout.groups(this.columns);
      let top = 0;
      for (const group of this.groups) {
        group.top = top + HEADING;
        top = group.top + Math.ceil((group.end - group.first) / this.columns) * this.size + 7;
      }
      this.height = top;
    }

    group(cell) {
      return this.groups.find(({ first, end }) => cell >= first && cell < end);
    }

    place(cell) {
      const group = this.group(cell);
      const index = cell - group.first;
      return {
        x: GUTTER + (index % this.columns) * this.size,
        y: group.top + Math.floor(index / this.columns) * this.size,
      };
    }

    /** The cell at a place, or null. */
    at(x, y) {
      const column = Math.floor((x - GUTTER) / this.size);
      if (column < 0 || column >= this.columns) return null;
      for (const group of this.groups) {
        const row = Math.floor((y - group.top) / this.size);
        const cell = group.first + row * this.columns + column;
        if (row >= 0 && cell < group.end) return cell;
      }
      return null;
    }
  }

  class Picture {
    constructor(canvas) {
      this.canvas = canvas;
      this.context = canvas.getContext("2d");
    }

    /** Draws everything: at most 1024 cells, each of a few rectangles. */
    draw(grid, width, list, chosen) {
      const ratio = devicePixelRatio;
      const { canvas, context } = this;
      const size = [Math.round(width * ratio), Math.round(grid.height * ratio)];
      if (canvas.width !== size[0] || canvas.height !== size[1]) {
        [canvas.width, canvas.height] = size;
        canvas.style.width = `${width}px`;
        canvas.style.height = `${grid.height}px`;
      }
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, grid.height);
      const colours = STATES.map(({ id }) => theme.colour(`--${id}`));
      for (const group of grid.groups) this.drawGroup(grid, group, list, colours, width);
      if (chosen !== null) this.drawChosen(grid, chosen);
    }

    /** The end of a text that is too wide is left out. */
    shorten(text, width) {
      let shown = text;
      while (shown.length > 1 && this.context.measureText(shown).width > width) {
        shown = `${shown.slice(0, -2)}…`;
      }
      return shown;
    }

    drawGroup(grid, group, list, colours, width) {
      const { context } = this;
      context.font = "600 11px system-ui, sans-serif";
      context.textBaseline = "alphabetic";
      context.textAlign = "left";
      context.fillStyle = theme.colour("--text");
      context.fillText(this.shorten(group.name, width - GUTTER), GUTTER, group.top - 5);
      this.drawAddresses(grid, group);
      const size = grid.size - 1;
      for (let cell = group.first; cell < group.end; cell += 1) {
        const index = cell - group.first;
        const x = GUTTER + (index % grid.columns) * grid.size;
        const y = group.top + Math.floor(index / grid.columns) * grid.size;
        this.drawCell(x, y, size, list[cell], colours);
      }
      this.drawOutline(grid, group);
    }

    /** The offset in the block of every fourth row or so. */
    drawAddresses(grid, group) {
      const [block] = group.blocks;
      if (group.blocks.length > 1 || block === null) return;
      const { context } = this;
      const { layout, columns, size } = grid;
      const rows = Math.ceil((group.end - group.first) / columns);
      const every = 2 ** Math.ceil(Math.log2(Math.max(26 / size, 1)));
      context.font = "11px system-ui, sans-serif";
      context.fillStyle = theme.colour("--dim");
      context.textAlign = "right";
      for (let row = 0; row < rows; row += every) {
        const page = Math.max((group.first + row * columns) * layout.cellPages - block.first_page, 0);
        const text = format.bytes(page * layout.memory.page_bytes);
        context.fillText(text, GUTTER - 7, group.top + row * size + Math.min(size, 12) - 1);
      }
    }

    drawCell(x, y, size, { pages, states, hot }, colours) {
      const { context } = this;
      let bottom = y + size;
      states.forEach((count, state) => {
        if (count === 0) return;
        const top = state === STATES.length - 1 ? y : Math.max(bottom - (count / pages) * size, y);
        context.fillStyle = colours[state];
        context.fillRect(x, top, size, bottom - top);
        bottom = top;
      });
      if (states[4] > 0) this.drawWaiting(x, y, size);
      if (hot) this.drawHot(x, y, size);
    }

    /** Shapes, so that these do not depend on colours alone: a ring for requested pages. */
    drawWaiting(x, y, size) {
      const { context } = this;
      context.beginPath();
      context.arc(x + size / 2, y + size / 2, Math.max(size / 2 - 1.5, 1.5), 0, 2 * Math.PI);
      context.fillStyle = theme.colour("--waiting");
      context.fill();
      context.lineWidth = 1.25;
      context.strokeStyle = theme.colour("--mark");
      context.stroke();
    }

    /** A cross for hot cells. */
    drawHot(x, y, size) {
      const { context } = this;
      context.lineWidth = 1.25;
      context.strokeStyle = theme.colour("--hot");
      context.strokeRect(x + 0.6, y + 0.6, size - 1.2, size - 1.2);
      context.beginPath();
      context.moveTo(x + 1, y + 1);
      context.lineTo(x + size - 1, y + size - 1);
      context.moveTo(x + size - 1, y + 1);
      context.lineTo(x + 1, y + size - 1);
      context.stroke();
    }

    /** The outline of a block. */
    drawOutline(grid, group) {
      const { context } = this;
      const count = group.end - group.first;
      const { columns, size } = grid;
      const right = GUTTER + Math.min(count, columns) * size;
      const full = Math.floor(count / columns);
      const rest = count % columns;
      const top = group.top - 1;
      const bottom = group.top + (full + (rest > 0 ? 1 : 0)) * size;
      context.beginPath();
      context.moveTo(GUTTER - 1.5, top - 0.5);
      context.lineTo(right + 0.5, top - 0.5);
      if (rest > 0 && full > 0) {
        context.lineTo(right + 0.5, group.top + full * size + 0.5);
        context.lineTo(GUTTER + rest * size + 0.5, group.top + full * size + 0.5);
        context.lineTo(GUTTER + rest * size + 0.5, bottom + 0.5);
      } else {
        context.lineTo(right + 0.5, bottom + 0.5);
      }
      context.lineTo(GUTTER - 1.5, bottom + 0.5);
      context.closePath();
      context.lineWidth = 1;
      context.strokeStyle = theme.colour("--outline");
      context.stroke();
    }

    drawChosen(grid, cell) {
      const { context } = this;
      const { x, y } = grid.place(cell);
      context.lineWidth = 2;
      context.strokeStyle = theme.colour("--panel");
      context.strokeRect(x - 3, y - 3, grid.size + 5, grid.size + 5);
      context.strokeStyle = theme.colour("--text");
      context.strokeRect(x - 1.5, y - 1.5, grid.size + 2, grid.size + 2);
    }
  }

  /** Source or destination, if both are known. */
  class SideChoice {
    constructor(changed) {
      const name = hikkoshi.dom.id("side");
      this.chosen = null;
      this.inputs = ["source", "destination"].map((side) => {
        const input = el("input", { type: "radio", name, value: side });
        input.addEventListener("change", () => {
          this.chosen = side;
          changed();
        });
        return input;
      });
      const labels = this.inputs.map((input) => el("label", {}, input, input.value));
      this.element = el("fieldset", { class: "choice" }, el("legend", { text: "Side" }), ...labels);
    }

    /** The recording to show. */
    update(migration) {
      const both = migration.source !== null && migration.destination !== null;
      this.element.hidden = !both;
      const side = both && this.chosen ? migration.side(this.chosen) : migration.leading;
      const shown = side.data.migration.side;
      this.inputs.forEach((input) => (input.checked = input.value === shown));
      return side;
    }
  }

  /** The time of the map that is shown: one of the frames, or the newest state. */
  class TimeChoice {
    constructor(changed) {
      const id = hikkoshi.dom.id("time");
      this.input = el("input", { type: "range", id, min: 0, max: 0, step: 1, value: 0 });
      this.output = el("output", { for: id });
      this.newest = true;
      this.atMs = null;
      this.times = [];
      this.input.addEventListener("input", () => {
        const index = Number(this.input.value);
        this.newest = index >= this.times.length - 1;
        this.atMs = this.times[index] ?? null;
        changed();
      });
      const label = el("label", { for: id, text: "Map at" });
      this.element = el("div", { class: "time" }, label, this.input, this.output);
    }

    /** The map to show, or null. */
    update({ data }) {
      const { frames, state, end } = data;
      const maps = frames.map(({ at_ms: atMs, map }) => ({ atMs, map }));
      if (state && maps.at(-1)?.atMs !== state.at_ms) maps.push({ atMs: state.at_ms, map: state.map });
      this.times = maps.map(({ atMs }) => atMs);
      // Frames are thinned while the migration runs: the nearest one stays chosen.
      let index = maps.length - 1;
      if (!this.newest) {
        const distance = (time) => Math.abs(time - this.atMs);
        index = this.times.reduce((best, time, i) => (distance(time) < distance(this.times[best]) ? i : best), 0);
      }
      const shown = maps[index];
      this.element.hidden = maps.length < 2;
      setAttribute(this.input, "max", Math.max(maps.length - 1, 0));
      if (this.input.value !== String(index)) this.input.value = index;
      const time = shown ? format.elapsed(shown.atMs) : format.NONE;
      const newest = index === maps.length - 1 ? (end ? " (the end)" : " (now)") : "";
      setText(this.output, `${time}${newest}`);
      setAttribute(this.input, "aria-valuetext", `${time}${newest}`);
      return shown?.map ?? null;
    }
  }

  class MemoryMap {
    constructor() {
      const { element } = panel("Guest memory", "memory-map");
      this.element = element;
      const changed = () => this.shown && this.update(this.shown);
      this.sides = new SideChoice(changed);
      this.times = new TimeChoice(changed);
      this.scale = el("p", { class: "note" });
      this.canvas = el("canvas", {
        role: "slider",
        tabindex: 0,
        "aria-label": "Cell of the memory map",
        "aria-valuemin": 0,
      });
      this.picture = new Picture(this.canvas);
      this.frame = el("div", { class: "map" }, this.canvas);
      this.legend = new Table("Pages by state", [
        { name: "state" },
        { name: "guest", number: true },
        { name: "share", number: true, bar: "plain" },
        { name: "cell", number: true },
      ], "legend");
      this.cellName = el("p", { class: "cell-name" });
      const help = el("p", { class: "note", text: "Point at a cell, or focus the map and use the arrow keys." });
      this.blocks = new Table("Pages by RAM block (cells with several blocks count for the largest)", [
        { name: "block" },
        { name: "pages", number: true },
        ...STATES.map(({ short }) => ({ name: short, number: true })),
        { name: "dirtied/s", number: true },
      ]);
      this.fold = fold("Table by RAM block", this.blocks.element);
      this.cells = new PagedTable("Pages by cell", [
        { name: "cell" },
        { name: "pages", number: true },
        ...STATES.map(({ short }) => ({ name: short, number: true })),
        { name: "dirtied/s", number: true },
        { name: "hot" },
      ], "cells", "cells");
      this.cellFold = fold("Table by cell", this.cells.element);
      [this.fold, this.cellFold].forEach((element) => element.addEventListener("toggle", changed));
      const head = el("div", { class: "tools" }, this.sides.element, this.times.element);
      const beside = el("div", { class: "map-figures" }, this.legend.element, this.cellName, help);
      element.append(head, this.scale, el("div", { class: "map-and-figures" }, this.frame, beside), this.fold, this.cellFold);
      this.cell = null;
      this.pinned = false;
      this.listen();
      new ResizeObserver(() => requestAnimationFrame(changed)).observe(this.frame);
      theme.onChange(changed);
    }

    listen() {
      this.canvas.addEventListener("pointermove", (event) => this.point(event, false));
      this.canvas.addEventListener("pointerdown", (event) => this.point(event, true));
      this.canvas.addEventListener("pointerleave", () => {
        if (!this.pinned) this.choose(null);
      });
      this.canvas.addEventListener("keydown", (event) => this.key(event));
    }

    point(event, pin) {
      const cell = this.grid?.at(event.offsetX, event.offsetY) ?? null;
      if (pin) this.pinned = cell !== null;
      else if (this.pinned || cell === null) return;
      this.choose(cell);
    }

    key(event) {
      if (!this.grid) return;
      const { columns, layout } = this.grid;
      const steps = {
        ArrowRight: 1,
        ArrowLeft: -1,
        ArrowDown: columns,
        ArrowUp: -columns,
        PageDown: 8 * columns,
        PageUp: -8 * columns,
        Home: -layout.cells,
        End: layout.cells,
      };
      if (event.key === "Escape") {
        this.pinned = false;
        this.choose(null);
      } else if (event.key in steps) {
        event.preventDefault();
        this.pinned = true;
        const next = this.cell === null ? 0 : this.cell + steps[event.key];
        this.choose(Math.min(Math.max(next, 0), layout.cells - 1));
      }
    }

    choose(cell) {
      if (cell === this.cell) return;
      this.cell = cell;
      if (this.shown) this.update(this.shown);
    }

    update(migration) {
      this.shown = migration;
      const recording = this.sides.update(migration);
      const map = recording.knows("map") ? this.times.update(recording) : null;
      this.element.hidden = !recording.knows("map");
      this.frame.parentElement.hidden = map === null;
      if (map === null) return;
      const { migration: moved } = recording.data;
      if (this.memory !== moved.memory) {
        this.memory = moved.memory;
        this.layout = new Layout(moved.memory);
        this.grid = null;
      }
      if (this.cell !== null && this.cell >= this.layout.cells) this.cell = null;
      const all = cells(this.layout, map);
      this.draw(all.list);
      this.describe(moved, all);
      const known = knows(moved.side, all);
      if (this.fold.open) this.updateBlocks(all, known);
      if (this.cellFold.open) this.updateCells(all, known);
    }

    draw(list) {
      const width = Math.floor(this.frame.clientWidth);
      if (width === 0) return;
      if (!this.grid || this.width !== width) {
        this.width = width;
        this.grid = new Grid(this.layout, width);
      }
      this.picture.draw(this.grid, width, list, this.cell);
    }

    describe(moved, all) {
      const { cell, layout } = this;
      const one = cell === null ? null : all.list[cell];
      const { memory } = moved;
      setText(
        this.scale,
        `${format.bytes(memory.pages * memory.page_bytes)} in ${format.plural(layout.cells, "cell")} of ` +
          `${format.bytes(layout.cellPages * memory.page_bytes)}; each is filled from the bottom by the states of its pages.`,
      );
      const labels = names(moved.side, all);
      const known = knows(moved.side, all);
      const rows = STATES.map((state, index) => {
        const count = all.totals[index];
        const part = count / Math.max(memory.pages, 1);
        return [
          { text: labels[index], swatch: state.id },
          known[index] ? format.count(count) : format.NONE,
          known[index] ? { text: format.share(part), part } : format.NONE,
          one && known[index] ? format.count(one.states[index]) : "",
        ];
      });
      const isRated = all.rated > 0;
      rows.push([
        { text: "Hot: dirtied much more than the mean", swatch: "hot" },
        isRated ? `${format.plural(all.hot, "cell")}${all.isComplete ? "" : " so far"}` : format.NONE,
        "",
        one && isRated ? (one.hot ? "yes" : "no") : "",
      ]);
      rows.push([
        { text: "Pages dirtied per second", swatch: "none" },
        format.count(all.rate),
        "",
        one && isRated ? format.count(one.rate) : "",
      ]);
      this.legend.update(rows);
      const name = one ? `Cell ${cell + 1} of ${layout.cells}: ${layout.name(cell)}` : "No cell chosen";
      setText(this.cellName, name);
      setAttribute(this.canvas, "aria-valuemax", layout.cells - 1);
      setAttribute(this.canvas, "aria-valuenow", cell ?? 0);
      setAttribute(this.canvas, "aria-valuetext", one ? `${name}: ${cellText(one, labels)}` : name);
    }

    updateBlocks(all, known) {
      const groups = this.grid?.groups ?? [];
      const rows = groups.map(({ name, first, end }) => {
        const inside = all.list.slice(first, end);
        const states = STATES.map((_, state) => sum(inside.map((cell) => cell.states[state])));
        const pages = sum(inside.map((cell) => cell.pages));
        const rate = sum(inside.map((cell) => cell.rate));
        return [name, ...figures(all, known, pages, states, rate)];
      });
      this.blocks.update(rows);
    }

    updateCells(all, known) {
      const { layout } = this;
      this.cells.update(layout.cells, (index) => {
        const { pages, states, rate, hot } = all.list[index];
        return [layout.name(index), ...figures(all, known, pages, states, rate), hot ? "yes" : ""];
      });
    }
  }

  /** The figures of a row: pages, pages by state, and the rate, as far as they are known. */
  const figures = (all, known, pages, states, rate) => [
    format.count(pages),
    ...states.map((count, index) => (known[index] ? format.count(count) : format.NONE)),
    all.rated > 0 ? format.count(rate) : format.NONE,
  ];

  /** A cell for a screen reader: what it has, without zeros. */
  const cellText = ({ states, rate, hot }, labels) => {
    const parts = labels.map((label, index) => [label, states[index]])
      .filter(([, count]) => count > 0)
      .map(([name, count]) => `${name}: ${format.count(count)}`);
    if (rate > 0) parts.push(`${format.count(rate)} dirtied per second${hot ? ", hot" : ""}`);
    return parts.join("; ");
  };

  return MemoryMap;
})();
