// The last hour of numbers, for charts: what the broker remembers, continued by the live stream.

const KEPT_MS = 3_600_000;

/** Samples in time order. `at` has the times; each other name a list of the same length. */
export class History {
  constructor(names) {
    this.names = names;
    this.at = [];
    this.values = Object.fromEntries(names.map((name) => [name, []]));
  }

  /** Begin with what the broker remembers: {at: [...], name: [...]}; null is a moment without a value. */
  load(told) {
    const later = this.at.map((at, index) => [at, index]).filter(([at]) => at > (told.at.at(-1) ?? 0));
    const kept = Object.fromEntries(this.names.map((name) => [name, later.map(([, index]) => this.values[name][index])]));
    this.at = [...told.at, ...later.map(([at]) => at)];
    for (const name of this.names) this.values[name] = [...(told[name] ?? told.at.map(() => null)), ...kept[name]];
  }

  /** Add a sample. */
  add(at, sample) {
    if (this.at.length && at <= this.at.at(-1)) return;
    this.at.push(at);
    for (const name of this.names) this.values[name].push(sample[name] ?? null);
    while (this.at[0] < at - KEPT_MS) {
      this.at.shift();
      for (const name of this.names) this.values[name].shift();
    }
  }

  /** Return the last values of a name, for a small line. */
  last(name, spanMs) {
    const from = (this.at.at(-1) ?? 0) - spanMs;
    return this.values[name].filter((_, index) => this.at[index] >= from);
  }
}

export const SPANS = [["60000", "1 min"], ["600000", "10 min"], ["3600000", "1 h"]];
