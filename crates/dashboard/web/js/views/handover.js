// The stages of the handover on both sides.
"use strict";

hikkoshi.views.handover = (() => {
  const { el, setText, setAttribute, panel } = hikkoshi.dom;

  const STAGES = {
    source: [
      ["owned", "Owned", "the guest runs here, or may be resumed here"],
      ["committed", "Committed", "only the destination may run it now"],
      ["handed_over", "Handed over", "the destination runs it"],
      ["done", "Done", "every page has arrived there"],
    ],
    destination: [
      ["receiving", "Receiving", "nothing is promised yet"],
      ["ready", "Ready", "the guest is loaded and could run"],
      ["running", "Running", "the guest runs here"],
      ["complete", "Complete", "every page has arrived"],
    ],
  };
  const DECLINED = ["declined", "Declined", "the guest never ran here and never will"];

  const hostOf = (side) => (side.knows("engine") ? `, ${side.data.migration.host}` : "");

  class Stages {
    constructor(side) {
      this.side = side;
      this.items = new Map();
      this.unknown = el("p", { class: "note" });
      const list = el("ol", { class: "stages" });
      const stages = side === "destination" ? [...STAGES.destination, DECLINED] : STAGES.source;
      stages.forEach(([id, name, meaning]) => {
        const mark = el("span", { class: "mark", "aria-hidden": "true" });
        const item = el("li", {}, mark, el("strong", { text: name }), el("span", { text: ` ${meaning}` }));
        this.items.set(id, { item, mark });
        list.append(item);
      });
      this.heading = el("h4");
      this.element = el("div", {}, this.heading, list, this.unknown);
    }

    update(migration) {
      const own = migration.side(this.side);
      const other = own ? null : migration.main.data.state;
      const stage = own ? own.data.state?.stage : other?.peer_stage;
      const host = own ? hostOf(own) : " (as far as its messages say)";
      setText(this.heading, `${this.side === "source" ? "Source" : "Destination"}${host}`);
      const ids = [...this.items.keys()];
      const at = ids.indexOf(stage);
      this.items.get("declined")?.item.toggleAttribute("hidden", stage !== "declined");
      ids.forEach((id, index) => {
        const { item, mark } = this.items.get(id);
        const done = index < at && (stage !== "declined" || id === "receiving");
        const now = id === stage;
        setAttribute(item, "class", now ? "now" : done ? "done" : null);
        setAttribute(item, "aria-current", now ? "step" : null);
        setText(mark, now ? "●" : done ? "✓" : "○");
      });
      this.unknown.hidden = at >= 0;
      setText(this.unknown, stage ? `Stage: ${stage}` : "The stage is not known.");
    }
  }

  class Handover {
    constructor() {
      const { element } = panel("Handover", "handover");
      this.element = element;
      this.sides = ["source", "destination"].map((side) => new Stages(side));
      element.append(el("div", { class: "both-sides" }, ...this.sides.map((side) => side.element)));
    }

    update(migration) {
      this.sides.forEach((side) => side.update(migration));
    }
  }

  return Handover;
})();
