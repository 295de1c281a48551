// Sizes and times with units, as in the settings and on the command line: 512MiB, 10GB, 30s, 7d.

const SIZES = { b: 1, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 };
const TIMES = { ms: 1, s: 1e3, m: 6e4, min: 6e4, h: 36e5, d: 864e5, w: 6048e5 };
const MEANING = { bytes: "a number of bytes, or a size such as 512MiB or 10GB", ms: "a number of milliseconds, or a time such as 30s or 7d" };

/** Return the number that a text stands for, in `unit` ("bytes" or "ms"). Raises: Error, which names the field. */
export function quantity(text, unit, name) {
  const found = /^(\d{1,18}(?:\.\d{1,9})?)\s*([a-z]*)$/.exec(text.trim().toLowerCase());
  const factor = found && (found[2] === "" ? 1 : (unit === "bytes" ? SIZES : TIMES)[found[2]]);
  const value = factor ? Math.round(Number(found[1]) * factor * 1000) / 1000 : NaN;
  if (!Number.isInteger(value)) throw new Error(`${name} should be ${MEANING[unit]}.`);
  return value;
}
