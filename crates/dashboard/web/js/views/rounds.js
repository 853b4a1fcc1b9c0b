// The rounds of pre-copy.
"use strict";

hikkoshi.views.rounds = (() => {
  const { panel, Table } = hikkoshi.dom;
  const { format } = hikkoshi;

  class Rounds {
    constructor() {
      const { element } = panel("Rounds of pre-copy", "rounds");
      this.element = element;
      this.table = new Table("What each round sent, and what was dirty at its end", [
        { name: "round" },
        { name: "took", number: true },
        { name: "pages", number: true, bar: "sent" },
        { name: "zero", number: true },
        { name: "bytes", number: true },
        { name: "rate", number: true },
        { name: "dirty after", number: true, bar: "dirty" },
      ], "dense");
      element.append(this.table.element);
    }

    update(migration) {
      const state = migration.stateOf("source");
      const rounds = state?.rounds ?? [];
      this.element.hidden = rounds.length === 0;
      if (rounds.length === 0) return;
      const most = Math.max(1, ...rounds.map((round) => Math.max(round.pages, round.dirty_pages ?? 0)));
      const now = state.at_ms;
      this.table.update(rounds.map((round) => {
        const took = (round.ended_ms ?? now) - round.begun_ms;
        const running = round.ended_ms === null;
        return [
          `${round.round}${running && migration.running ? ", now" : ""}`,
          format.duration(took),
          { text: format.count(round.pages), part: round.pages / most },
          format.count(round.zero),
          format.bytes(round.bytes),
          took > 0 ? format.rate((round.bytes / took) * 1000) : format.NONE,
          { text: format.count(round.dirty_pages), part: (round.dirty_pages ?? 0) / most },
        ];
      }));
    }
  }

  return Rounds;
})();
