// The list of migrations.
"use strict";

hikkoshi.List = (() => {
  const { el, setText, setAttribute } = hikkoshi.dom;
  const { format } = hikkoshi;

  /** The most migrations in the list: the newest. */
  const MOST = 200;

  class Item {
    constructor(id) {
      this.mark = el("span", { class: "mark", "aria-hidden": "true" });
      this.guest = el("span", { class: "guest" });
      this.text = el("span", { class: "text" });
      this.progress = hikkoshi.dom.bar("running");
      this.link = el("a", { href: `#${encodeURIComponent(id)}` }, this.mark, this.guest, this.text, this.progress.element);
      this.element = el("li", {}, this.link);
    }

    update(migration, chosen) {
      const { outcome, running } = migration;
      const { mode } = migration.main.data.migration;
      const outage = running ? migration.outage : null;
      setText(this.mark, outage ? "✕" : outcome.symbol);
      setText(this.guest, migration.guest);
      const sides = migration.sides.map((side) => side.data.migration.side).join(" and ");
      const phase = outage ? `no link, ${migration.phase.toLowerCase()}` : migration.phase;
      const what = running ? phase : outcome.text;
      setText(this.text, `${what} · ${mode} · ${sides} · ${format.clock(migration.began)}`);
      setAttribute(this.link, "class", outage ? "bad" : outcome.kind);
      setAttribute(this.link, "aria-current", chosen ? "true" : null);
      // A destination does not know how far pre-copy is.
      const progress = running ? migration.progress : null;
      this.progress.element.toggleAttribute("hidden", progress === null);
      if (progress) this.progress.set(progress.done / progress.total);
    }
  }

  class List {
    constructor() {
      this.items = new Map();
      this.evacuation = new hikkoshi.Evacuation();
      this.hosts = new hikkoshi.Hosts();
      this.running = el("ul");
      this.ended = el("ul");
      this.runningHeading = el("h2");
      this.endedHeading = el("h2");
      this.unreadable = el("div");
      this.element = el("nav", { "aria-label": "Migrations" },
        this.evacuation.element, this.runningHeading, this.running, this.endedHeading, this.ended, this.unreadable,
        this.hosts.element);
      this.element.addEventListener("keydown", (event) => this.key(event));
    }

    /** Arrow keys move between the links; Enter follows one, as everywhere. */
    key(event) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      const links = [...this.element.querySelectorAll("a")];
      const next = links[links.indexOf(document.activeElement) + step];
      if (next) {
        next.focus();
        event.preventDefault();
      }
    }

    /**
     * `unreadable`: names of entries that have no recording, and why. `evacuation`: or null.
     * `hosts`: the last answers of other hosts.
     */
    update(migrations, chosen, unreadable, evacuation, hosts) {
      this.hosts.update(hosts);
      this.showUnreadable([...unreadable].slice(0, MOST));
      const newest = migrations.slice(0, MOST);
      for (const [id, item] of this.items) {
        if (!newest.some((migration) => migration.id === id)) {
          item.element.remove();
          this.items.delete(id);
        }
      }
      const moves = this.evacuation.update(evacuation, newest);
      const others = newest.filter((migration) => !moves.includes(migration));
      const running = others.filter((migration) => migration.running);
      const ended = others.filter((migration) => !migration.running);
      setText(this.runningHeading, `In progress (${running.length})`);
      setText(this.endedHeading, `Ended (${ended.length})`);
      this.show(this.evacuation.moves, moves, chosen);
      this.show(this.running, running, chosen);
      this.show(this.ended, ended, chosen);
    }

    showUnreadable(entries) {
      const shown = JSON.stringify(entries);
      if (shown === this.shownUnreadable) return;
      this.shownUnreadable = shown;
      const item = ([name, why]) =>
        el("li", {}, el("p", { class: "guest", text: name }), el("p", { class: "text", text: why }));
      this.unreadable.replaceChildren(...(entries.length === 0 ? [] : [
        el("h2", { text: `Not readable (${entries.length})` }),
        el("ul", { class: "unreadable" }, ...entries.map(item)),
      ]));
    }

    show(list, migrations, chosen) {
      migrations.forEach((migration, index) => {
        let item = this.items.get(migration.id);
        if (!item) {
          item = new Item(migration.id);
          this.items.set(migration.id, item);
        }
        item.update(migration, migration.id === chosen);
        if (list.children[index] !== item.element) {
          const focused = item.link === document.activeElement;
          list.insertBefore(item.element, list.children[index] ?? null);
          if (focused) item.link.focus();
        }
      });
    }
  }

  return List;
})();
