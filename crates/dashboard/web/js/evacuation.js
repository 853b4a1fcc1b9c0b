// The evacuation of this host: one heading, its progress, and its guests.
"use strict";

hikkoshi.Evacuation = (() => {
  const { el, setText } = hikkoshi.dom;
  const { format } = hikkoshi;

  /** The name of a stage, which is a name or an object with one member. */
  const nameOf = (stage) => (typeof stage === "string" ? stage : Object.keys(stage)[0]);

  /** What there is to say of a guest: `[name of the stage, text]`. */
  const stageOf = (guest, isOver) => {
    if (!guest) return ["waiting", isOver ? "not begun" : "waits"];
    const name = nameOf(guest.stage);
    const texts = {
      moving: `moves to ${guest.to}`,
      moved: `moved to ${guest.to}`,
      stays: "stays",
      unfinished: "handed over, not complete",
      lost: "lost",
    };
    const message = guest.stage[name]?.message;
    return [name, message ? `${texts[name]}: ${message}` : (texts[name] ?? name)];
  };

  /** `planned 12.0 s (10.0 s to 20.0 s)`. */
  const planned = (total) => {
    if (!total) return "";
    const high = format.known(total.high) ? format.duration(total.high) : "it may not end";
    return ` · planned ${format.duration(total.likely)} (${format.duration(total.low)} to ${high})`;
  };

  class Evacuation {
    constructor() {
      this.heading = el("h2");
      this.text = el("p", { class: "text" });
      this.bar = hikkoshi.dom.bar("running");
      this.moves = el("ul");
      this.others = el("ul", { class: "evacuated" });
      this.element = el("section", { "aria-label": "Evacuation", hidden: true });
    }

    /** Without an evacuation there is no heading either. */
    exist(exists) {
      if (exists !== this.element.hidden) return;
      this.element.hidden = !exists;
      this.element.replaceChildren(
        ...(exists ? [this.heading, this.text, this.bar.element, this.moves, this.others] : []));
    }

    /**
     * `data`: what the host has stored, or null. Returns those of `migrations` that are moves of
     * the evacuation, which are listed here.
     */
    update(data, migrations) {
      this.exist(Boolean(data));
      if (!data) return [];
      const isOver = format.known(data.ended_unix_ms);
      const names = new Set([...(data.plan?.moves ?? []).map((move) => move.guest), ...Object.keys(data.guests)]);
      const counts = { moved: 0, moving: 0, waiting: 0, stays: 0, unfinished: 0, lost: 0 };
      const own = [];
      const others = [];
      for (const name of names) {
        const guest = data.guests[name];
        const [stage, text] = stageOf(guest, isOver);
        counts[stage] += 1;
        const isOf = ({ data: { migration } }) => migration.side === "source" && migration.pid === guest?.pid;
        const migration = migrations.find(({ recordings }) => recordings.some(isOf));
        if (migration) own.push(migration);
        if (!migration || (stage !== "moving" && stage !== "moved")) others.push([name, text]);
      }
      const all = Object.entries(counts).filter(([stage, count]) => count > 0 || stage === "moved");
      const done = all.map(([stage, count]) => `${count} ${stage}`).join(", ");
      setText(this.heading, `Evacuation (${counts.moved} of ${names.size})`);
      const elapsed = (data.ended_unix_ms ?? Date.now()) - data.started_unix_ms;
      const likely = data.plan?.total_ms.likely;
      const left = format.known(likely) && !isOver ? ` · about ${format.duration(Math.max(likely - elapsed, 0))} left` : "";
      const time = format.known(data.started_unix_ms) ? ` · ${format.duration(elapsed)}` : "";
      setText(this.text, `${done}${time}${left}${planned(data.plan?.total_ms)}`);
      this.bar.element.toggleAttribute("hidden", isOver || !format.known(likely));
      this.bar.set(format.known(likely) ? elapsed / likely : 0);
      this.showOthers(others);
      return own;
    }

    showOthers(others) {
      const shown = JSON.stringify(others);
      if (shown === this.shown) return;
      this.shown = shown;
      const item = ([name, text]) =>
        el("li", {}, el("p", { class: "guest", text: name }), el("p", { class: "text", text }));
      this.others.replaceChildren(...others.map(item));
    }
  }

  return Evacuation;
})();
