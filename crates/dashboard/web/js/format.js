// Numbers and times as text.
"use strict";
const hikkoshi = {};

hikkoshi.format = (() => {
  const NONE = "–";
  const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

  /** Formats are made once, because that takes longer than a hundred numbers. */
  const FORMATS = [0, 1, 2].map((places) =>
    new Intl.NumberFormat("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }));

  /** Whether there is a number. */
  const known = (value) => typeof value === "number" && Number.isFinite(value);

  /** A number with so many digits after the point, in groups of three. */
  const digits = (value, places) => FORMATS[places].format(value);

  /** About three digits. */
  const three = (value) => digits(value, value >= 100 || value === 0 ? 0 : value >= 10 ? 1 : 2);

  /** A whole number: `1,234,567`. */
  const count = (value) => (known(value) ? digits(Math.round(value), 0) : NONE);

  /** `12.3 MiB`. */
  const bytes = (value) => {
    if (!known(value)) return NONE;
    let unit = 0;
    while (value >= 1024 && unit < BYTES.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return `${unit === 0 || Number.isInteger(value) ? digits(value, 0) : three(value)} ${BYTES[unit]}`;
  };

  /** Bytes per second, always in MiB/s: one place, or as many as two digits need. */
  const rate = (value) => {
    if (!known(value)) return NONE;
    const mib = value / 2 ** 20;
    if (mib <= 0 || mib >= 0.095) return `${mib.toFixed(1)} MiB/s`;
    return `${mib.toFixed(Math.min(2 - Math.ceil(Math.log10(mib)), 8))} MiB/s`;
  };

  /** An address or a length without rounding: `1,664 MiB`. */
  const exactBytes = (value) => {
    let unit = 0;
    while (value > 0 && value % 1024 === 0 && unit < BYTES.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return `${digits(value, 0)} ${BYTES[unit]}`;
  };

  /** A time in ms: `0.42 ms`, `3.1 s`, `2 min 5 s`, `1 h 2 min`. */
  const duration = (ms) => {
    if (!known(ms)) return NONE;
    if (ms < 1000) return `${three(ms)} ms`;
    const seconds = ms / 1000;
    if (seconds < 100) return `${three(seconds)} s`;
    const whole = Math.round(seconds);
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  };

  /** A time since the migration began, for an axis: `0:07.5`, `12:34`. */
  const elapsed = (ms) => {
    if (!known(ms)) return NONE;
    const tenths = Math.round(ms / 100);
    const minutes = Math.floor(tenths / 600);
    const seconds = Math.floor((tenths % 600) / 10);
    const rest = tenths % 10 === 0 ? "" : `.${tenths % 10}`;
    return `${minutes}:${String(seconds).padStart(2, "0")}${rest}`;
  };

  /** Date and time, in this computer's time zone. */
  const clock = (unixMs) => {
    const date = new Date(unixMs);
    const two = (value) => String(value).padStart(2, "0");
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  };

  /** A part of 1: `12.3 %`. */
  const share = (part) => {
    if (!known(part)) return NONE;
    const percent = part * 100;
    if (percent > 0 && percent < 0.1) return "< 0.1 %";
    return `${digits(percent, percent === 0 || percent === 100 ? 0 : 1)} %`;
  };

  return {
    NONE,
    known,
    count,
    bytes,
    exactBytes,
    duration,
    elapsed,
    clock,
    share,
    number: (value) => (known(value) ? three(value) : NONE),
    rate,
    /** µs, as the shortest text. */
    micros: (value) => (known(value) ? (value < 1000 ? `${three(value)} µs` : duration(value / 1000)) : NONE),
    /** How long the migration still takes, with its uncertainty. */
    timeLeft: (left) => {
      if (!left) return NONE;
      const high = known(left.high_s) ? duration(left.high_s * 1000) : "it may not end";
      return `about ${duration(left.likely_s * 1000)} (${duration(left.low_s * 1000)} to ${high})`;
    },
    /** How long the guest was paused (`Migration.downtime`): `about 50 ms, at most 176 ms`. */
    downtime: ({ ms, bound, likely }) => {
      const measured = bound === null ? duration(ms) : `${bound} ${duration(ms)}`;
      return likely === null ? measured : `about ${duration(likely)}, ${measured}`;
    },
    /** `1 page`, `2 pages`. */
    plural: (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`,
  };
})();
