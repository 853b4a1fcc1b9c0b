// How far a migration is, or how it ended.
"use strict";

hikkoshi.views.summary = (() => {
  const { el, setText, setAttribute, fold, Table } = hikkoshi.dom;
  const { format } = hikkoshi;
  const { PHASES, enginesOf, outcome, outcomeOf, lastTime } = hikkoshi.migration;

  const GUEST = {
    source: "runs at the source",
    paused: "paused",
    destination: "runs at the destination",
  };

  class Summary {
    constructor() {
      this.title = el("h2", { tabindex: -1 });
      this.route = el("p", { class: "route" });
      // Only what changes seldom is announced: not the numbers.
      this.phase = el("p", { class: "phase", role: "status", "aria-live": "polite" });
      this.outage = el("p", { class: "outage" });
      this.progress = el("progress", { max: 1, value: 0 });
      this.progressText = el("span", { class: "progress-text" });
      this.work = el("div", { class: "work" }, this.progress, this.progressText);
      this.facts = el("dl", { class: "facts" });
      this.shownFacts = new Map();
      this.message = el("p");
      this.next = el("p");
      this.engines = el("div", { class: "engines" });
      this.fold = fold("Engines", this.engines);
      this.element = el("section", { class: "summary" }, this.title, this.route, this.phase,
        this.outage, this.message, this.next, this.work, this.facts, this.fold);
    }

    update(migration) {
      const { main, leading, outcome } = migration;
      const { migration: moved } = main.data;
      const state = leading.data.state;
      setText(this.title, migration.guest);
      setText(this.route, route(migration));
      const running = migration.running;
      setText(this.phase, running ? phaseText(migration) : `${outcome.symbol} ${capital(outcome.text)}`);
      const outage = running ? migration.outage : null;
      setAttribute(this.phase, "class", `phase ${outage ? "bad" : outcome.kind}`);
      setText(this.outage, outage ? outageText(outage) : "");
      this.outage.hidden = outage === null;
      this.showEnd(migration);
      const progress = running ? migration.progress : null;
      this.work.hidden = progress === null;
      if (progress) this.showProgress(state, progress);
      this.showFacts(facts(migration, moved, state));
      this.showEngines(migration.recordings);
    }

    /** What the side says that is worse off, as the outcome does. */
    showEnd(migration) {
      const { outcome, running } = migration;
      const side = migration.sides.find((recording) => outcomeOf(recording) === outcome) ?? migration.main;
      const message = running ? "" : (side.data.end?.message ?? side.lost ?? "");
      const next = running ? "" : (side.data.end?.next ?? "");
      setText(this.message, capital(message));
      setText(this.next, next === "" ? "" : `Next: ${next}`);
      this.message.hidden = message === "";
      this.next.hidden = next === "";
    }

    showProgress(state, { done, total, isDisks }) {
      const part = done / total;
      this.progress.value = part;
      if (isDisks) {
        setAttribute(this.progress, "aria-label", "Copied disks");
        setText(this.progressText, `${format.bytes(done)} of ${format.bytes(total)} of the disks (${format.share(part)})`);
        return;
      }
      const what = state.phase === "precopy" ? `round ${state.round}` : (PHASES[state.phase] ?? state.phase).toLowerCase();
      setAttribute(this.progress, "aria-label", `Pages of ${what}`);
      setText(
        this.progressText,
        `${format.count(done)} of ${format.count(total)} pages of ${what} (${format.share(part)})`,
      );
    }

    /** A table with a column for each engine. */
    showEngines(newestFirst) {
      const enginesOfRecording = (recording) => enginesOf(recording).map((engine) => ({ recording, ...engine }));
      const enginesAt = (side) =>
        newestFirst.filter(({ data }) => data.migration.side === side).flatMap(enginesOfRecording);
      const engines = [...enginesAt("source"), ...enginesAt("destination")];
      const columns = engines.map(({ recording }) => ifKnown(recording, "side", recording.data.migration.side));
      if (columns.join() !== this.engineColumns) {
        this.engineColumns = columns.join();
        this.engineTable = new Table("Engines of this migration", [
          { name: "" },
          ...columns.map((side) => ({ name: side })),
        ]);
        this.engines.replaceChildren(this.engineTable.element);
      }
      const rows = ENGINE.map(([name, value]) => [name, ...engines.map((engine) => value(engine) ?? "")]);
      this.engineTable.update(rows.filter(([, ...values]) => values.some((value) => value !== "")));
    }

    showFacts(list) {
      for (const [name, value] of list) {
        if (!this.shownFacts.has(name)) {
          const shown = { value: el("dd") };
          shown.element = el("div", {}, el("dt", { text: name }), shown.value);
          this.shownFacts.set(name, shown);
          this.facts.append(shown.element);
        }
        const shown = this.shownFacts.get(name);
        shown.element.hidden = value === null;
        if (value !== null) setText(shown.value, value);
      }
    }
  }

  const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

  const phaseText = (migration) =>
    migration.outage ? `✕ No link (${migration.phase.toLowerCase()})` : migration.phase;

  /** Since when there are no links, until when they are tried to be replaced, and what the guest waits for. */
  const outageText = ({ from_ms: from, before_ms: before = 0, until_ms: until, state, side }) => {
    const lasted = `No link for ${format.duration(Math.max(state.at_ms - from + before, 0))}`;
    const retries = (until ?? null) === null ? ", waiting without a limit" : `, tried for ${format.duration(Math.max(until - state.at_ms, 0))} more`;
    return `${lasted}${retries}. ${waits(state, side)}`;
  };

  const waits = ({ guest_at: at, missing_pages: missing, waiting_pages: waiting }, side) => {
    if (at === "paused") return `The guest ${side === "source" ? "may be" : "is"} paused until there are links.`;
    if (missing === 0) return "The guest needs no page.";
    if (side === "source") return "The guest may wait for pages.";
    return waiting === 0 ? "The guest waits for no page yet." : `The guest waits for ${format.plural(waiting, "page")}.`;
  };

  const route = (migration) => {
    const { source, destination, main } = migration;
    const { mode, peer } = main.data.migration;
    const known = main.knows("engine") && main.knows("side");
    const host = (side) => (known && (side ? side.data.migration.host : peer)) || format.NONE;
    const how = main.knows("mode") ? mode : `mode ${format.NONE}`;
    const began = main.knows("began") ? format.clock(migration.began) : format.NONE;
    return `${host(source)} → ${host(destination)} · ${how} · began ${began} · migration ${migration.id}`;
  };

  /** The times of a result are those of its engine, and its total is that of the migration. */
  const totalTime = (recording) => {
    const account = recording.data.end?.account;
    return account?.engine_ms === undefined ? lastTime(recording) : account.total_ms;
  };

  /** Null: the fact says nothing now. */
  const facts = (migration, moved, state) => {
    if (!state) return [];
    const { running } = migration;
    const pageBytes = moved.memory.page_bytes;
    const dirty = migration.stateOf("source").dirty_pages_per_second;
    const missing = migration.stateOf("destination").missing_pages;
    const { requests, downtime } = migration;
    // The source has what was sent; without it, what has arrived is known.
    const sent = migration.source ? "Sent" : "Received";
    const { bytes } = migration.stateOf("source");
    const total = bytes.precopy + bytes.urgent + bytes.background + bytes.device_state + bytes.disks;
    const limit = moved.max_downtime_ms === null ? "" : ` (limit ${format.duration(moved.max_downtime_ms)})`;
    return [
      ["Time left", running ? timeLeft(migration) : null],
      ["Elapsed", running ? format.elapsed(state.at_ms) : null],
      ["Total time", running ? null : format.duration(totalTime(migration.main))],
      ["Guest", GUEST[state.guest_at] ?? state.guest_at],
      ["Paused for", downtime === null ? null : `${format.downtime(downtime)}${limit}`],
      ["Sent", sent === "Sent" ? format.bytes(total) : null],
      ["Received", sent === "Received" ? format.bytes(total) : null],
      ["Compressed", compressed(migration.stateOf("source"))],
      ["Rate", running ? format.rate(state.bytes_per_second) : null],
      ["Dirtied", running && dirty !== null ? format.rate(dirty * pageBytes) : null],
      ["Missing", missing === null ? null : `${format.plural(missing, "page")} (${format.bytes(missing * pageBytes)})`],
      ["Page requests", requests && requests.count > 0
        ? `${format.count(requests.count)}, median ${format.micros(requests.p50_us)}, p99 ${format.micros(requests.p99_us)}`
        : null],
    ];
  };

  const compressed = ({ compression }) => {
    const methods = Object.entries(compression ?? {});
    if (methods.length === 0) return null;
    return methods
      .map(([method, { content_bytes, sent_bytes }]) => `${format.bytes(content_bytes)} to ${format.bytes(sent_bytes)} by ${method}`)
      .join(", ");
  };

  const timeLeft = (migration) => {
    const { converges } = migration.stateOf("source");
    if (converges === "no") return "pre-copy does not converge";
    const known = migration.sides.map(({ data }) => data.state?.time_left).find((value) => value);
    const text = known ? format.timeLeft(known) : "not known";
    return converges === "switches" ? `${text}; pre-copy does not converge, and switches to post-copy` : text;
  };

  const result = (engine) => {
    const { end } = engine;
    const { symbol, text } = outcome(engine);
    return `${symbol} ${text}${end ? ` (status ${end.exit_status}, ${end.reason})` : ""}`;
  };

  /** A value, if that part of the recording is known. */
  const ifKnown = (recording, part, value) => (recording.knows(part) ? value : format.NONE);

  const beganAt = ({ started_unix_ms: began, resumed }) => `${format.clock(began)}${resumed ? ", resumed" : ""}`;

  /** What is said about an engine. */
  const ENGINE = [
    ["host", ({ recording, host }) => ifKnown(recording, "engine", host)],
    ["process", ({ recording, pid }) => ifKnown(recording, "engine", String(pid))],
    ["began", (engine) => ifKnown(engine.recording, "began", beganAt(engine))],
    [
      "took",
      ({ recording, begun_ms: from, until_ms: to }) =>
        ifKnown(recording, "duration", format.duration(Math.max(to - from, 0))),
    ],
    ["result", result],
    ["message", ({ end, lost }) => end?.message ?? lost],
    ["what to do next", ({ end }) => end?.next],
  ];

  return Summary;
})();
