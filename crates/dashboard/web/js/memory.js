// What has happened to the pages of a cell of the map.
"use strict";

hikkoshi.memory = (() => {
  /**
   * The states of a page, in the order in which a cell shows them, from the bottom. A page is in
   * exactly one. Names differ by side, as the map's fields do.
   */
  const STATES = [
    ["requested", "by request", "Sent by request", "Received by request"],
    ["background", "in the background", "Sent in the background", "Received in the background"],
    ["sent", "in pre-copy", "Sent in pre-copy, clean since", "Received in pre-copy"],
    ["dirty", "dirty", "Sent, and dirty again", "Dirty again at the source"],
    ["waiting", "requested", "Requested, no answer yet", "Requested, no answer yet"],
    ["missing", "missing", "Missing: not sent yet", "Missing: not received yet"],
    ["unsent", "rest", "Not sent", "Not received: not yet, or unused"],
  ].map(([id, short, source, destination]) => ({ id, short, source, destination }));

  /** Rates of so much of the memory are those of the guest, as in the crate's `Map`. */
  const COMPLETE = 9 / 10;

  /** A hot cell is dirtied so much more than the mean cell, as for `hikkoshi dirty-rate`. */
  const HOT = 4;

  /** A hot cell has at least this part of all that is dirtied. */
  const HOT_SHARE = 0.01;

  /** A row of the gutter's blocks is at least this part of a row of cells. */
  const LABELLED = 0.25;

  /** Cells, blocks and addresses of a guest's memory. */
  class Layout {
    constructor(memory) {
      this.memory = memory;
      this.cellPages = Math.max(memory.cell_pages, 1);
      this.cells = Math.min(Math.ceil(memory.pages / this.cellPages), 4096);
    }

    /** The pages of a cell: the last one may be smaller. */
    pages(cell) {
      return Math.min(this.cellPages, this.memory.pages - cell * this.cellPages);
    }

    /** The block that has most of a cell's pages. */
    block(cell) {
      const first = cell * this.cellPages;
      const end = first + this.pages(cell);
      let best = null;
      let most = 0;
      for (const block of this.memory.blocks) {
        const part = Math.min(end, block.first_page + block.pages) - Math.max(first, block.first_page);
        if (part > most) [best, most] = [block, part];
      }
      return best;
    }

    /** Names of all blocks that have pages of a cell. */
    blocksIn(cell) {
      const first = cell * this.cellPages;
      const end = first + this.pages(cell);
      return this.memory.blocks.filter(
        (block) => block.first_page < end && block.first_page + block.pages > first,
      );
    }

    /** The block that has most of a cell, and where the cell is in it and in the guest, in bytes. */
    place(cell) {
      const { page_bytes: pageBytes } = this.memory;
      const block = this.block(cell);
      const offset = Math.max(cell * this.cellPages - (block?.first_page ?? 0), 0) * pageBytes;
      const mapped = (block?.guest ?? []).find((range) => offset >= range.offset && offset < range.offset + range.bytes);
      return {
        block,
        offset,
        bytes: this.pages(cell) * pageBytes,
        address: mapped ? mapped.address + offset - mapped.offset : null,
      };
    }

    /** Where a cell begins: `pc.ram + 64 MiB`. */
    start(cell) {
      const { bytes, plural } = hikkoshi.format;
      const inside = this.blocksIn(cell);
      if (inside.length > 1) {
        const names = inside.slice(0, 3).map((block) => block.id).join(", ");
        return inside.length > 3 ? `${names} and ${plural(inside.length - 3, "other block")}` : names;
      }
      const [block] = inside;
      const page = cell * this.cellPages - (block?.first_page ?? 0);
      return `${block?.id ?? "memory"} + ${bytes(Math.max(page, 0) * this.memory.page_bytes)}`;
    }

    /** `pc.ram + 64 MiB to 68 MiB`. */
    name(cell) {
      const [block, ...others] = this.blocksIn(cell);
      if (!block || others.length > 0) return this.start(cell);
      const end = Math.min(cell * this.cellPages + this.pages(cell) - block.first_page, block.pages);
      return `${this.start(cell)} to ${hikkoshi.format.bytes(end * this.memory.page_bytes)}`;
    }

    /**
     * Groups of cells that are drawn together: a block, or neighbouring blocks that are too small
     * to have rows of their own with so many columns.
     */
    groups(columns) {
      const groups = [];
      const least = Math.max(columns * LABELLED, 1);
      let first = 0;
      while (first < this.cells) {
        const block = this.block(first);
        let end = first + 1;
        while (end < this.cells && this.block(end) === block) end += 1;
        const small = end - first < least;
        const last = groups.at(-1);
        if (small && last?.small) {
          last.end = end;
          last.blocks.push(block);
        } else {
          groups.push({ first, end, small, blocks: [block] });
        }
        first = end;
      }
      const named = new Set(groups.flatMap(({ blocks }) => blocks));
      groups.forEach((group) => (group.name = this.groupName(group, named)));
      return groups;
    }

    /** Its blocks, and those that share cells with them and are `named` nowhere. */
    groupName({ first, end, blocks }, named) {
      const names = blocks.filter((block) => block !== null).map((block) => block.id);
      const shared = new Set();
      for (let cell = Math.max(first, end - 2); cell < end; cell += 1) {
        this.blocksIn(cell).forEach((block) => named.has(block) || shared.add(block.id));
      }
      const [one, ...others] = [...names, ...shared];
      if (!one) return "memory";
      return others.length === 0 ? one : `${one} and ${hikkoshi.format.plural(others.length, "other block")}`;
    }
  }

  /** The pages of one cell by state (the order of `STATES`), from the numbers of a map. */
  const cellPages = (map, cell, pages, postcopy) => {
    const at = (list) => Math.max(list[cell] ?? 0, 0);
    let left = pages;
    const take = (count) => {
      const taken = Math.min(count, left);
      left -= taken;
      return taken;
    };
    const missing = take(at(map.missing));
    const waiting = Math.min(at(map.waiting), missing);
    const requested = take(at(map.by_request));
    const background = take(at(map.background));
    const sent = take(at(map.sent));
    const dirty = postcopy ? 0 : Math.min(at(map.dirty), sent);
    return [requested, background, sent - dirty, dirty, waiting, missing - waiting, left];
  };

  const sum = (list) => list.reduce((total, value) => total + value, 0);

  /** Whether a map has what only post-copy brings. */
  const isPostcopy = (map) => [map.missing, map.by_request, map.background].some((list) => sum(list) > 0);

  /** The part of the memory of which it is known how much the guest writes to it: at the source, in pre-copy. */
  const ratedPart = (layout, map) => {
    const rated = map.rated_pages;
    return Math.min(rated / Math.max(layout.memory.pages, 1), 1);
  };

  /** All cells of a map: pages by state, rates, and which are hot. `rate` is null if it is not known. */
  const cells = (layout, map) => {
    const postcopy = isPostcopy(map);
    const rated = ratedPart(layout, map);
    const rates = map.dirty_per_second;
    const all = sum(rates);
    const mean = all / Math.max(layout.cells * rated, 1);
    const list = [];
    const totals = STATES.map(() => 0);
    let hot = 0;
    for (let cell = 0; cell < layout.cells; cell += 1) {
      const pages = layout.pages(cell);
      const states = cellPages(map, cell, pages, postcopy);
      states.forEach((count, state) => (totals[state] += count));
      const rate = rates[cell] ?? 0;
      const isHot = rate > 0 && rate >= HOT * mean && rate >= HOT_SHARE * all;
      hot += isHot ? 1 : 0;
      list.push({ pages, states, rate, hot: isHot });
    }
    const isComplete = rated >= COMPLETE;
    return { list, totals, hot, rate: isComplete ? all / rated : null, rated, isComplete, postcopy };
  };

  /** Names of the states in the map of a side, of whose `cells` the guest's writes may not be known. */
  const names = (side, { rated, isComplete, postcopy }) => STATES.map((state) => {
    if (side === "source" && state.id === "sent" && !isComplete && !postcopy) return "Sent in pre-copy";
    if (side === "source" && state.id === "dirty" && rated > 0 && !isComplete) return `${state.source}, as far as known`;
    return state[side];
  });

  /** Which states are known to a side: only the destination knows which requests have no answer. */
  const knows = (side, { rated }) => STATES.map(({ id }) => {
    if (id === "waiting") return side === "destination";
    return id !== "dirty" || (side === "source" && rated > 0);
  });

  /** The most ranges that are listed: the hottest. */
  const MOST_RANGES = 10;

  /** Which cells are hot: four times the mean or more, and a hundredth of all. */
  const hotCells = (rates, cells) => {
    const list = Array.from({ length: cells }, (_, cell) => rates[cell] ?? 0);
    const all = sum(list);
    const least = Math.max((all * HOT) / Math.max(cells, 1), all * HOT_SHARE);
    return list.map((rate) => rate > 0 && rate >= least);
  };

  /**
   * Adjacent hot cells as ranges, the hottest first: `{name, address, mean, highest}`, of the lists
   * of a recording. Adjacent cells are one range only if their guest addresses are, too.
   */
  const hotRanges = (layout, { highest, mean }) => {
    const byHighest = hotCells(highest, layout.cells);
    const byMean = hotCells(mean, layout.cells);
    const ranges = [];
    let last = null;
    for (let cell = 0; cell < layout.cells; cell += 1) {
      if (!byHighest[cell] && !byMean[cell]) continue;
      const place = layout.place(cell);
      const rate = mean[cell] ?? 0;
      const next = last && last.cell + 1 === cell && last.block === place.block &&
        last.offset + last.bytes === place.offset &&
        (last.address === null ? null : last.address + last.bytes) === place.address;
      if (next) {
        last.bytes += place.bytes;
        last.mean += rate;
        last.highest = Math.max(last.highest, highest[cell] ?? 0);
        last.cell = cell;
      } else {
        last = { cell, ...place, mean: rate, highest: highest[cell] ?? 0 };
        ranges.push(last);
      }
    }
    const { exactBytes: bytes } = hikkoshi.format;
    return ranges
      .map((range) => ({
        ...range,
        name: `${range.block?.id ?? "memory"} + ${bytes(range.offset)} to ${bytes(range.offset + range.bytes)}`,
      }))
      .sort((a, b) => b.mean - a.mean || b.highest - a.highest)
      .slice(0, MOST_RANGES);
  };

  return { STATES, Layout, cells, names, knows, sum, hotRanges };
})();
