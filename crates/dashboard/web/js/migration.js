// One migration: the recordings of its source, its destination, or both.
"use strict";

hikkoshi.migration = (() => {
  const PHASES = {
    connecting: "Connecting",
    disks: "Copying disks",
    precopy: "Pre-copy",
    switchover: "Switchover",
    postcopy: "Post-copy",
  };

  /** What the exit status means. `kind` is a class: `good`, `bad` or `warning`. */
  const OUTCOMES = [
    { kind: "good", symbol: "✓", text: "moved" },
    { kind: "warning", symbol: "↩", text: "stays at the source" },
    { kind: "warning", symbol: "–", text: "not begun" },
    { kind: "warning", symbol: "‖", text: "handed over, not complete" },
    { kind: "bad", symbol: "✕", text: "guest lost" },
  ];
  const SHUT_DOWN = { kind: "good", symbol: "✓", text: "shut down at the destination" };
  const UNKNOWN = { kind: "bad", symbol: "?", text: "ended" };
  const LOST = { kind: "bad", symbol: "?", text: "engine not reached" };
  const RUNNING = { kind: "running", symbol: "▶", text: "running" };

  /** How a recording or an engine ended. */
  const outcome = ({ end, lost }) => {
    if (end) {
      return end.reason === "shut_down" ? SHUT_DOWN : (OUTCOMES[end.exit_status] ?? UNKNOWN);
    }
    return lost === null ? RUNNING : LOST;
  };

  const outcomeOf = (recording) => outcome({ end: recording.data.end, lost: recording.lost });

  /** The time of the last thing that a recording has. */
  const lastTime = ({ data }) =>
    Math.max(data.end?.at_ms ?? 0, data.state?.at_ms ?? 0, data.samples.at(-1)?.at_ms ?? 0);

  /** The engines of a recording, the first one first: several, if one resumed what another had begun. */
  const enginesOf = (recording) => {
    const { migration, engines, end } = recording.data;
    const { pid, host, started_unix_ms, resumed } = migration;
    const all = engines?.length ? engines : [{ pid, host, started_unix_ms, resumed, begun_ms: 0 }];
    const last = { ...all.at(-1), until_ms: lastTime(recording), end, lost: recording.lost };
    return [...all.slice(0, -1).map((engine) => ({ ...engine, lost: "its engine was killed" })), last];
  };

  const newestFirst = (a, b) =>
    enginesOf(b).at(-1).started_unix_ms - enginesOf(a).at(-1).started_unix_ms;

  /** Whether all engines of another recording are in this one, which has more. */
  const contains = (recording, other) => {
    const [own, others] = [enginesOf(recording), enginesOf(other)];
    const isOwn = (engine) =>
      own.some(({ pid, started_unix_ms: at }) => engine.pid === pid && engine.started_unix_ms === at);
    return recording.data.migration.side === other.data.migration.side && own.length > others.length && others.every(isOwn);
  };

  /**
   * How long the guest was paused, as one side has measured it: in ms, what that is of the
   * downtime, and how long it likely was. The source's ends when it has received the message that
   * the guest runs; the destination's begins with a message that is sent after the pause.
   */
  const downtimeOf = (recording) => {
    const { migration, state, end } = recording.data;
    const account = end?.account;
    const ms = account?.downtime_ms ?? state?.downtime_ms ?? null;
    if (ms === null) return null;
    const likely = account?.likely_downtime_ms ?? state?.likely_downtime_ms ?? null;
    const known = recording.knows("side") && state?.guest_at !== "paused";
    const bound = migration.side === "source" ? "at most" : "at least";
    return { ms, bound: known ? bound : null, likely };
  };

  class Migration {
    constructor(id) {
      this.id = id;
      this.recordings = [];
    }

    /** The recording of an engine that another one has resumed is a part of that one's recording. */
    add(recording) {
      if (this.recordings.some((other) => contains(other, recording))) return;
      this.recordings = this.recordings.filter((other) => !contains(recording, other));
      this.recordings.push(recording);
      this.recordings.sort(newestFirst);
    }

    /** The newest recording of a side. */
    side(side) {
      return this.recordings.find((recording) => recording.data.migration.side === side) ?? null;
    }

    get source() {
      return this.side("source");
    }

    get destination() {
      return this.side("destination");
    }

    /** The sides that are known here. */
    get sides() {
      return [this.source, this.destination].filter((side) => side !== null);
    }

    /** The recording that has most to say in general: the source's. */
    get main() {
      return this.source ?? this.destination;
    }

    get guest() {
      return this.main.data.migration.guest;
    }

    /** When its first engine began, in ms since 1970. */
    get began() {
      return Math.min(...this.recordings.map((recording) => recording.data.migration.started_unix_ms));
    }

    get running() {
      return this.sides.some((side) => outcomeOf(side) === RUNNING);
    }

    /** How it ended, or that it runs. The side that is worse off decides. */
    get outcome() {
      const outcomes = this.sides.map(outcomeOf);
      const rank = ({ kind }) => ["running", "good", "warning", "bad"].indexOf(kind);
      if (outcomes.includes(RUNNING)) return RUNNING;
      return outcomes.reduce((worst, other) => (rank(other) > rank(worst) ? other : worst));
    }

    /** The recording whose state tells how far it is: in post-copy the destination's. */
    get leading() {
      const { source, destination } = this;
      if (!source || !destination) return source ?? destination;
      return destination.data.state?.phase === "postcopy" ? destination : source;
    }

    /** The present or last phase, for people. */
    get phase() {
      const state = this.leading.data.state;
      if (!state) return "Beginning";
      const round = state.phase === "precopy" && state.round > 0 ? `, round ${state.round}` : "";
      return `${PHASES[state.phase] ?? state.phase}${round}`;
    }

    /**
     * How far the present round or phase is, of pages, or of bytes of disks, as the crate's
     * `State::progress` says. Null: not known.
     */
    get progress() {
      const { state } = this.leading.data;
      if (!state) return null;
      const isDisks = state.phase === "disks";
      const disks = state.disks ?? [];
      const sum = (bytes) => disks.reduce((total, disk) => total + bytes(disk), 0);
      const done = isDisks ? sum((disk) => disk.copied_bytes) : state.done_pages;
      const total = isDisks ? sum((disk) => disk.total_bytes) : state.total_pages;
      return total > 0 ? { done: Math.min(done, total), total, isDisks } : null;
    }

    /** The state of a side, or of the other one if that side is not known here, or has none yet. */
    stateOf(side) {
      return this.side(side)?.data.state ?? this.leading.data.state;
    }

    /**
     * What has to be added to times of a recording, in ms, so that both sides have one time axis.
     * The hosts' clocks say how much. If the times then have nothing in common, the clocks are
     * wrong, and both sides are shown as if they had begun together.
     */
    offset(recording) {
      const { main } = this;
      const { side, started_unix_ms: began } = recording.data.migration;
      const offset = began - main.data.migration.started_unix_ms;
      if (side === main.data.migration.side) return offset;
      const overlaps = offset < lastTime(main) && offset + lastTime(recording) > 0;
      return overlaps ? offset : 0;
    }

    /** How long the guest was paused, or null: what the source says, or else the destination. */
    get downtime() {
      return this.sides.map(downtimeOf).find((downtime) => downtime !== null) ?? null;
    }

    /**
     * The present time without links, of a side whose engine runs: the destination's first, which
     * knows for which pages the guest waits. Null: there are links.
     */
    get outage() {
      const sides = [this.destination, this.source].filter((side) => side !== null && outcomeOf(side) === RUNNING);
      const open = sides.map(({ data }) => {
        const last = data.state?.outages.at(-1);
        return last?.to_ms === null ? { ...last, state: data.state, side: data.migration.side } : null;
      });
      return open.find((outage) => outage !== null) ?? null;
    }

    /** The latency of page requests, which the destination measures. */
    get requests() {
      return this.stateOf("destination")?.requests ?? null;
    }
  }

  /** Recordings by migration. */
  const group = (recordings) => {
    const migrations = new Map();
    for (const recording of recordings) {
      const { id } = recording.data.migration;
      if (!migrations.has(id)) migrations.set(id, new Migration(id));
      migrations.get(id).add(recording);
    }
    return [...migrations.values()];
  };

  return { Migration, PHASES, enginesOf, group, outcome, outcomeOf, lastTime };
})();
