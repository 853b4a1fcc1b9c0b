// Other hosts (`hikkoshi dashboard --host`): what they have, and their migrations that run.
"use strict";

hikkoshi.Hosts = (() => {
  const { el, setText } = hikkoshi.dom;
  const { format } = hikkoshi;

  /** `3 guests · 12 GiB of 64 GiB free · load 0.5 of 8`. */
  const facts = ({ host, guests, other_guests }) =>
    [
      format.plural(guests.length + other_guests, "guest"),
      `${format.bytes(host.memory.available_bytes)} of ${format.bytes(host.memory.total_bytes)} free`,
      `load ${format.number(host.processors.load[0])} of ${host.processors.online}`,
    ].join(" · ");

  /** What a migration does, or that it waits for somebody. */
  const course = ({ running, answers, state, unfinished }) => {
    if (unfinished) return "handed over, not complete";
    if (running && !answers) return "its engine does not answer";
    const phase = state ? (hikkoshi.migration.PHASES[state.phase] ?? state.phase) : "Beginning";
    const progress = state?.total_pages > 0 ? ` · ${format.share(Math.min(state.done_pages / state.total_pages, 1))}` : "";
    return `${phase}${progress}`;
  };

  const move = (line) => {
    const { guest, side, peer } = line.migration;
    const way = side === "source" ? "leaves" : "arrives";
    const other = peer ? ` (${peer})` : "";
    return el("li", {},
      el("p", { class: "guest", text: guest }),
      el("p", { class: "text", text: `${way}${other} · ${course(line)}` }));
  };

  /** A host that does not answer has no facts. */
  const item = ({ asked, status, error }) => {
    const moves = (status?.migrations ?? []).filter((line) => line.running || line.unfinished);
    return el("li", { class: error ? "bad" : "" },
      el("p", { class: "guest", text: asked }),
      el("p", { class: "text", text: error ? `no answer: ${error}` : facts(status) }),
      ...(status?.problems ?? []).map((text) => el("p", { class: "text", text })),
      ...(moves.length > 0 ? [el("ul", {}, ...moves.map(move))] : []));
  };

  class Hosts {
    constructor() {
      this.heading = el("h2");
      this.list = el("ul", { class: "hosts" });
      this.element = el("section", { "aria-label": "Other hosts", hidden: true });
    }

    /** `hosts`: the last answer of each, by its name. Without hosts there is no heading either. */
    update(hosts) {
      const shown = JSON.stringify([...hosts.values()]);
      if (shown === this.shown) return;
      this.shown = shown;
      this.element.hidden = hosts.size === 0;
      this.element.replaceChildren(...(hosts.size > 0 ? [this.heading, this.list] : []));
      setText(this.heading, `Other hosts (${hosts.size})`);
      this.list.replaceChildren(...[...hosts.values()].map(item));
    }
  }

  return Hosts;
})();
