// A report: all its migrations, one after another, from the data in the page.
"use strict";

(() => {
  const { Recording } = hikkoshi.recording;
  const data = JSON.parse(document.getElementById("recordings").textContent);
  const recordings = data.map((recording, index) => new Recording(String(index), recording));
  for (const migration of hikkoshi.migration.group(recordings)) {
    const place = document.getElementById(`migration-${migration.id}`);
    if (!place) continue;
    const sections = new hikkoshi.Sections();
    place.append(sections.element);
    sections.update(migration);
  }
})();
