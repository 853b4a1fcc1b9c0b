// The live page: applies the server's events, and draws at most ten times a second.
"use strict";

hikkoshi.live = (() => {
  const { el, setText, setAttribute } = hikkoshi.dom;
  const { Recording } = hikkoshi.recording;

  /** The least time between two updates, in ms: 10 Hz, less the inaccuracy of frames. */
  const DISTANCE = 92;

  /** How long to wait before a recording that could not be fetched is fetched again, in ms. */
  const RETRY = 2000;

  class Page {
    constructor() {
      this.recordings = new Map();
      /** Entries without a recording, and why: they cannot be read. */
      this.unreadable = new Map();
      /** Names of recordings that are fetched now. */
      this.fetched = new Set();
      this.migrations = [];
      this.evacuation = null;
      /** The last answers of other hosts, by their names. */
      this.hosts = new Map();
      this.changed = true;
      this.drawn = -Infinity;
      this.list = new hikkoshi.List();
      this.sections = new hikkoshi.Sections();
      this.connection = document.getElementById("connection");
      this.empty = document.getElementById("empty");
      this.reports = document.getElementById("reports");
      document.getElementById("list").append(this.list.element);
      document.getElementById("main").append(this.sections.element);
      this.sections.element.hidden = true;
      addEventListener("hashchange", () => {
        this.changed = true;
        this.drawn = -Infinity;
        this.focus = true;
      });
      this.listen();
      const frame = (now) => {
        if (this.changed && now - this.drawn >= DISTANCE) this.draw(now);
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    }

    listen() {
      const events = new EventSource("events");
      const on = (kind, handle) =>
        events.addEventListener(kind, (event) => {
          handle(JSON.parse(event.data));
          this.changed = true;
        });
      events.addEventListener("open", () => {
        // The server sends everything again; what it does not send is gone.
        this.unsent = new Set([...this.recordings.keys(), ...this.unreadable.keys()]);
        this.evacuation = null;
        this.hosts.clear();
        this.connected("on", "Connected");
      });
      on("all-sent", () => {
        this.unsent?.forEach((name) => this.remove(name));
        this.unsent = null;
      });
      events.addEventListener("error", () => {
        const closed = events.readyState === EventSource.CLOSED;
        this.connected("off", closed
          ? "The connection was refused. Reload the page."
          : "Connection lost: what is shown is old. Trying again.");
        if (closed) setTimeout(() => this.listen(), 2000);
      });
      on("status", ({ name, record, short }) => this.status(name, record, short));
      on("lost", ({ name, text }) => this.lose(name, text));
      on("gone", ({ name }) => this.remove(name));
      on("evacuation", ({ evacuation }) => {
        this.evacuation = evacuation ?? null;
      });
      on("host", ({ host }) => this.hosts.set(host.asked, host));
    }

    remove(name) {
      this.recordings.delete(name);
      this.unreadable.delete(name);
      this.regroup = true;
    }

    lose(name, text) {
      const recording = this.recordings.get(name);
      if (recording) {
        recording.lost = text;
      } else {
        this.unsent?.delete(name);
        this.unreadable.set(name, text);
      }
    }

    status(name, record, short = false) {
      if (record.recording) {
        this.unsent?.delete(name);
        this.unreadable.delete(name);
        this.regroup = true;
      }
      const recording = this.recordings.get(name);
      if (recording) recording.apply(record, short);
      else if (record.recording) this.recordings.set(name, new Recording(name, record.recording, short));
    }

    /** Fetches what the events leave out: samples and frames. */
    complete(migration) {
      for (const recording of migration.recordings) {
        const { name, data, short } = recording;
        if (!short || this.fetched.has(name)) continue;
        this.fetched.add(name);
        const done = () => {
          this.fetched.delete(name);
          this.changed = true;
        };
        fetch(`api/migrations/${encodeURIComponent(name)}`)
          .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(answer.statusText))))
          .then((whole) => {
            // If another recording has come meanwhile, that one is fetched.
            if (recording.data === data) recording.complete(whole);
            done();
          })
          .catch(() => setTimeout(done, RETRY));
      }
    }

    connected(state, text) {
      setAttribute(this.connection, "class", state);
      setText(this.connection, text);
      this.changed = true;
    }

    draw(now) {
      this.changed = false;
      this.drawn = now;
      if (this.regroup) {
        this.regroup = false;
        this.migrations = hikkoshi.migration.group([...this.recordings.values()]);
      }
      this.migrations.sort((a, b) => b.running - a.running || b.began - a.began);
      const chosen = this.chosen();
      this.list.update(this.migrations, chosen?.id, this.unreadable, this.evacuation, this.hosts);
      this.empty.hidden = this.migrations.length + this.unreadable.size > 0;
      this.sections.element.hidden = !chosen;
      if (chosen) {
        this.complete(chosen);
        this.sections.update(chosen);
        this.showReports(chosen);
        const running = this.migrations.filter((migration) => migration.running).length;
        document.title = running > 0 ? `(${running}) hikkoshi: ${chosen.guest}` : `hikkoshi: ${chosen.guest}`;
      }
      this.reports.hidden = !chosen;
      if (this.focus) {
        this.focus = false;
        this.sections.summary.title.focus({ preventScroll: true });
      }
    }

    /** The migration that the address names, or the first one. */
    chosen() {
      let id = "";
      try {
        id = decodeURIComponent(location.hash.slice(1));
      } catch {
        // Not an address that this page made.
      }
      const named = this.migrations.find((migration) => migration.id === id);
      // The first one stays chosen when another one begins.
      const shown = named ?? this.migrations.find((migration) => migration.id === this.first) ?? this.migrations[0];
      if (!named) this.first = shown?.id;
      return shown;
    }

    showReports(migration) {
      const names = migration.recordings.map((recording) => recording.name).join("/");
      if (names === this.reported) return;
      this.reported = names;
      this.reports.replaceChildren(...migration.recordings.map(({ name, data }) =>
        el("a", { href: `report/${encodeURIComponent(name)}.html`, text: `Report of the ${data.migration.side}` })));
    }
  }

  return new Page();
})();
