// The disks that are copied with the guest.
"use strict";

hikkoshi.views.disks = (() => {
  const { panel, Table } = hikkoshi.dom;
  const { format } = hikkoshi;

  class Disks {
    constructor() {
      const { element } = panel("Copied disks", "disks");
      this.element = element;
      this.table = new Table("How far each disk is copied", [
        { name: "disk" },
        { name: "copied", number: true, bar: "sent" },
        { name: "of", number: true },
        { name: "both sides" },
      ]);
      element.append(this.table.element);
    }

    update(migration) {
      const disks = migration.stateOf("source")?.disks ?? [];
      this.element.hidden = disks.length === 0;
      this.table.update(disks.map((disk) => [
        disk.name,
        { text: format.bytes(disk.copied_bytes), part: disk.copied_bytes / Math.max(disk.total_bytes, 1) },
        format.bytes(disk.total_bytes),
        disk.in_sync ? "in sync" : "differ",
      ]));
    }
  }

  return Disks;
})();
