// Numbers, sizes, durations and names as text. Every function accepts null, which is shown as "–", and undefined, a
// field that an answer lacks, which is shown as unknown.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
/** Shown for unknown values, as distinct from none. */
const UNKNOWN = "?";
const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Return a count with separators: 12,345. */
export function count(value) {
  return Number.isFinite(value) ? whole.format(value) : nothing(value);
}

/** Return a count that fits into a figure: 12,345, then 1.23 M. */
export function short(value) {
  if (!Number.isFinite(value)) return nothing(value);
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"]]) {
    if (Math.abs(value) >= size) return (value / size).toFixed(2) + unit;
  }
  return whole.format(value);
}

/** Return a rate per second: 0, 0.4, 12, 1,234. */
export function rate(value) {
  if (!Number.isFinite(value)) return nothing(value);
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(1) : whole.format(value);
}

/** Return a number of bytes in binary units: 417 KiB. */
export function bytes(value) {
  if (!Number.isFinite(value)) return nothing(value);
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

/** Return a duration in its two largest units: 3 d 4 h, 2 min 5 s, 80 ms. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return nothing(ms);
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Return a time of day by the reader's clock: 14:05:09. */
export function clock(ms) {
  return Number.isFinite(ms) ? new Date(ms).toLocaleTimeString("en-GB") : nothing(ms);
}

/** Return date and time by the reader's clock: 2026-11-23 14:05:09. */
export function moment(ms) {
  if (!Number.isFinite(ms)) return nothing(ms);
  const at = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`;
}

/** Return a value of an AMQP table or of JSON as one line. */
export function value(any) {
  if (any === undefined || any === null) return nothing(any);
  return typeof any === "string" ? any : JSON.stringify(any);
}

/** Return "1 message", "2 messages". */
export function many(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Return an exchange's name; the default exchange has none. */
export function exchangeName(name) {
  return name === "" ? "(default exchange)" : name;
}

/** Return the rate of a counter in `message_stats`. */
export function rateOf(stats, name) {
  return stats?.[`${name}_details`]?.rate;
}

/** Return "yes" or "no". */
export function yesNo(value) {
  return value === undefined ? UNKNOWN : value ? "yes" : "no";
}

/** Return the name of a policy or the like, "none" for null. */
export function orNone(value) {
  return value === undefined ? UNKNOWN : value || "none";
}

function nothing(value) {
  return value === null ? "–" : UNKNOWN;
}
