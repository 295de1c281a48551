// The last hour of numbers, for charts: the broker's history, continued by the live stream.

const KEPT_MS = 3_600_000;

/** Samples in time order. `at` has the times; each other name a list of the same length. */
export class History {
  constructor(names) {
    this.names = names;
    this.at = [];
    this.values = Object.fromEntries(names.map((name) => [name, []]));
  }

  /** Prepend the broker's history: {at: [...], name: [...]}; null is a time without a value. */
  load(past) {
    const later = this.at.map((at, index) => [at, index]).filter(([at]) => at > (past.at.at(-1) ?? 0));
    const kept = Object.fromEntries(this.names.map((name) => [name, later.map(([, index]) => this.values[name][index])]));
    this.at = [...past.at, ...later.map(([at]) => at)];
    for (const name of this.names) this.values[name] = [...(past[name] ?? past.at.map(() => null)), ...kept[name]];
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

  /** Return the last values of a name, for a small chart. */
  last(name, spanMs) {
    const from = (this.at.at(-1) ?? 0) - spanMs;
    return this.values[name].filter((_, index) => this.at[index] >= from);
  }
}

export const SPANS = [["60000", "1 min"], ["600000", "10 min"], ["3600000", "1 h"]];
