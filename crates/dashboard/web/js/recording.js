// A recording, and the records that are added to it. The fields are those of the crate
// `hikkoshi-status`; its `Recorder` adds to a recording in the same way.
"use strict";

hikkoshi.recording = (() => {
  /** The most samples, frames and notices, as in `Recorder`. */
  const SAMPLES = 1200;
  const FRAMES = 32;
  const NOTICES = 200;

  /** The distance of states, in ms. */
  const TICK = 100;

  /** A list of records that stay at equal distances: half of them goes when there are too many. */
  const thin = (entries, most) =>
    entries.length > most ? entries.filter((_, index) => index % 2 === 0) : entries;

  /** Whether it is time for another entry after `entries`, at the distance that they have since the engine began. */
  const due = (entries, atMs, begun) => {
    const last = entries.at(-1);
    if (!last) return true;
    const [before] = entries.slice(-2);
    const distance = before !== last && before.at_ms >= begun ? last.at_ms - before.at_ms : TICK;
    return atMs - last.at_ms >= distance - TICK / 2;
  };

  const totals = (state) => ({
    at_ms: state.at_ms,
    bytes: state.bytes.precopy + state.bytes.urgent + state.bytes.background + (state.bytes.disks ?? 0),
    requests: state.requests.count,
    latency: state.requests.mean_us * state.requests.count,
  });

  /** The time over which the rate of bytes of a state is taken, in ms. */
  const RATE_MS = 1000;

  /** The rates since the totals at `before`; of bytes, over a second if that is longer. */
  const sample = (state, before) => {
    const now = totals(state);
    const seconds = Math.max(now.at_ms - before.at_ms, 0) / 1000;
    const rate = (count) => (seconds > 0 ? Math.max(count, 0) / seconds : 0);
    const answered = Math.max(now.requests - before.requests, 0);
    return {
      at_ms: state.at_ms,
      phase: state.phase,
      bytes_per_second: now.at_ms - before.at_ms <= RATE_MS ? state.bytes_per_second : rate(now.bytes - before.bytes),
      dirty_pages_per_second: state.dirty_pages_per_second,
      missing_pages: state.missing_pages,
      waiting_pages: state.waiting_pages,
      requests_per_second: rate(answered),
      latency_us: answered > 0 ? Math.max((now.latency - before.latency) / answered, 0) : null,
    };
  };

  /** Entries of two lists, those of the second one that are later than all of the first one. */
  const joined = (before, after) => {
    const last = before.at(-1)?.at_ms ?? -1;
    return [...before, ...after.filter(({ at_ms: at }) => at > last)];
  };

  /**
   * Adds the dirty rates of a state, which count for the time since the state before: if those of
   * nearly all `pages` are known, as in the crate's `Map`.
   */
  const addRates = (rates, state, before, pages) => {
    const lasted = Math.max(state.at_ms - before, 0);
    const rated = state.map.rated_pages;
    if (state.dirty_pages_per_second === null || rated * 10 < pages * 9 || lasted === 0) return;
    const present = state.map.dirty_per_second;
    const cells = Math.max(present.length, rates.mean.length);
    const total = rates.measured_ms + lasted;
    for (let cell = 0; cell < cells; cell += 1) {
      const rate = present[cell] ?? 0;
      rates.highest[cell] = Math.max(rates.highest[cell] ?? 0, rate);
      rates.mean[cell] = ((rates.mean[cell] ?? 0) * rates.measured_ms + rate * lasted) / total;
    }
    rates.measured_ms = total;
  };

  /** What is known about one migration on one side. */
  class Recording {
    /** `short`: samples and frames are left out; `complete` adds them. */
    constructor(name, data, short = false) {
      this.name = name;
      this.data = data;
      this.short = short;
      this.lost = null;
      this.sampled = null;
    }

    /** Whether that part is known: see `Unknown` of the crate. */
    knows(part) {
      return !(this.data.unknown ?? []).includes(part);
    }

    /** Adds a record: `{state}`, `{notice}`, `{end}` or `{recording}`, which replaces everything. */
    apply(record, short = false) {
      if (record.recording) {
        const { samples, frames, state } = this.data;
        this.data = record.recording;
        // What is known is shown until the rest was fetched.
        if (short) {
          Object.assign(this.data, { samples, frames });
          if (this.data.state && state && this.data.end) this.data.state.map = state.map;
        }
        this.short = short;
        this.lost = null;
        this.sampled = null;
      } else if (record.state) {
        this.addState(record.state);
      } else if (record.notice) {
        this.data.notices.push(record.notice);
        if (this.data.notices.length > NOTICES) this.data.notices.shift();
      } else if (record.end) {
        const last = this.data.state;
        if (last && this.data.frames.at(-1)?.at_ms !== last.at_ms) {
          this.data.frames.push({ at_ms: last.at_ms, map: last.map });
        }
        this.data.end = record.end;
      }
    }

    /** Adds what a short recording does not have, from the whole one, which may be older or newer. */
    complete(whole) {
      const { data } = this;
      // Another object: what views have computed from the frames is old.
      data.migration = whole.migration;
      data.samples = thin(joined(whole.samples, data.samples), SAMPLES);
      data.frames = thin(joined(whole.frames, data.frames), FRAMES);
      if (!data.state || (whole.state && whole.state.at_ms >= data.state.at_ms)) data.state = whole.state;
      this.short = false;
    }

    addState(state) {
      const { data } = this;
      const begun = data.engines?.at(-1)?.begun_ms ?? 0;
      if (data.dirty_rates) addRates(data.dirty_rates, state, data.state?.at_ms ?? 0, data.migration.memory.pages);
      const none = { at_ms: 0, bytes: 0, requests: 0, latency: 0 };
      this.sampled ??= data.state ? totals(data.state) : none;
      if (due(data.samples, state.at_ms, begun)) {
        data.samples.push(sample(state, this.sampled));
        data.samples = thin(data.samples, SAMPLES);
        this.sampled = totals(state);
      }
      if (due(data.frames, state.at_ms, begun)) {
        data.frames.push({ at_ms: state.at_ms, map: state.map });
        data.frames = thin(data.frames, FRAMES);
      }
      data.state = state;
    }
  }

  return { Recording };
})();
