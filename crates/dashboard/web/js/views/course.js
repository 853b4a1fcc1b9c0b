// What happened, and when: phases, outages, messages and the end.
"use strict";

hikkoshi.views.course = (() => {
  const { panel, Table } = hikkoshi.dom;
  const { format } = hikkoshi;

  const PHASES = {
    connecting: "The engines connect",
    disks: "The guest's disks are copied",
    precopy: "Pre-copy: memory is sent while the guest runs at the source",
    switchover: "Switchover: the guest is paused",
    postcopy: "Post-copy: the guest runs at the destination, pages follow",
  };

  class Course {
    constructor() {
      const { element } = panel("What happened", "course");
      this.element = element;
      this.table = new Table("Phases, outages and messages, the newest first", [
        { name: "time" },
        { name: "side" },
        { name: "what" },
      ], "course");
      element.append(this.table.element);
    }

    update(migration) {
      const list = migration.recordings.flatMap((recording) =>
        events(recording, recording === migration.main).map((event) => ({ ...event, time: event.at_ms + migration.offset(recording) })),
      );
      // The end of a side comes after everything else of the same time.
      list.sort((a, b) => b.time - a.time || b.order - a.order);
      this.element.hidden = list.length === 0;
      this.table.update(list.map(({ text, side, time }) => [format.elapsed(time), side, text]));
    }
  }

  /** What one recording tells. Phases are the same on both sides, so one has them. */
  const events = (recording, withPhases) => {
    const { data, lost } = recording;
    const side = recording.knows("side") ? data.migration.side : format.NONE;
    const list = [];
    const add = (at_ms, text, order = 1) => list.push({ at_ms, text, side, order });
    data.samples.forEach(({ at_ms, phase }, index) => {
      if (withPhases && phase !== data.samples[index - 1]?.phase) add(at_ms, PHASES[phase] ?? phase, 0);
    });
    for (const { from_ms: from, to_ms: to } of data.state?.outages ?? []) {
      add(from, "The links were lost");
      if (to !== null) add(to, `The links are up again, after ${format.duration(to - from)}`);
    }
    data.notices.forEach(({ at_ms, text }) => add(at_ms, text));
    if (data.end) add(recording.knows("duration") ? data.end.at_ms : NaN, data.end.message, 2);
    if (lost !== null) add(data.state?.at_ms ?? 0, lost, 2);
    return list;
  };

  return Course;
})();
