// The colours of pictures that are drawn on a canvas: those of the style sheet.
"use strict";

hikkoshi.theme = (() => {
  const listeners = new Set();
  let colours = new Map();

  /** The colour of a custom property, such as `--sent`. */
  const colour = (name) => {
    if (!colours.has(name)) {
      colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    }
    return colours.get(name);
  };

  const changed = () => {
    colours = new Map();
    listeners.forEach((listener) => listener());
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  matchMedia("print").addEventListener("change", changed);

  return {
    colour,
    /** Calls `listener` when the colours have changed. */
    onChange: (listener) => listeners.add(listener),
  };
})();
