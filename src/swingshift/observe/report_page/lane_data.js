"use strict";
// The spans of a run's devices, asked for windows of time and for shares of bins.

const GAP = 255;  // a device of which nothing is known

function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

// A lane has a label and members: one device, or all of a kind.
class Lanes {
  constructor(data) {
    this.states = data.states;
    this.kind = data.kind;
    if (data.kind === "spans") this.readSpans(data); else this.readBins(data);
    this.each = this.rows.map((row) => ({ label: row.name, members: [row] }));
    const kinds = new Map();
    for (const row of this.rows) {
      const kind = row.name.replace(/-\d+$/, "");
      kinds.set(kind, [...(kinds.get(kind) || []), row]);
    }
    const label = (kind, members) => (members.length > 1 ? `${kind} × ${members.length}` : members[0].name);
    this.kinds = [...kinds].map(([kind, members]) => ({ label: label(kind, members), members }));
  }

  readSpans(data) {
    this.tick = data.tick_s;
    this.starts = new Uint32Array(bytesOf(data.starts).buffer);
    this.at = bytesOf(data.states_at);
    let from = 0;
    this.rows = data.devices.map((name, i) => ({ name, from, to: (from += data.counts[i]) }));
  }

  readBins(data) {
    this.binS = data.bin_s;
    this.numBins = data.num_bins;
    this.shares = bytesOf(data.shares);
    this.rows = data.devices.map((name, index) => ({ name, index }));
  }

  // Index of the last boundary at or before a time, at least the row's first.
  boundary(row, seconds) {
    const tick = seconds / this.tick;
    let low = row.from, high = row.to - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= tick) low = middle; else high = middle - 1;
    }
    return low;
  }

  *spans(row, left, right) {
    if (row.to <= row.from) return;
    for (let i = this.boundary(row, left); i < row.to - 1; i++) {
      const start = this.starts[i] * this.tick, end = this.starts[i + 1] * this.tick;
      if (start >= right) return;
      if (this.at[i] !== GAP && end > left) yield [start, end, this.at[i]];
    }
  }

  // Stops counting beyond enough.
  countSpans(rows, left, right, enough) {
    let count = 0;
    for (const row of rows) {
      if (row.to > row.from) count += this.boundary(row, right) - this.boundary(row, left) + 1;
      if (count > enough) break;
    }
    return count;
  }

  // Edges of at most so many bins over a window.
  edges(left, right, most) {
    if (this.kind === "spans") return Array.from({ length: most + 1 }, (_, i) => left + ((right - left) * i) / most);
    const first = Math.min(this.numBins - 1, Math.max(0, Math.floor(left / this.binS)));
    const last = Math.min(this.numBins, Math.max(first + 1, Math.ceil(right / this.binS)));
    const step = Math.max(1, Math.ceil((last - first) / most));
    const edges = [];
    for (let i = first; i < last; i += step) edges.push(i * this.binS);
    return [...edges, last * this.binS];
  }

  // Of one device: Float64Array, [bin * number of states + state].
  sharesOf(row, edges) {
    return this.kind === "spans" ? this.sharesOfSpans(row, edges) : this.sharesOfBins(row, edges);
  }

  sharesOfSpans(row, edges) {
    const numBins = edges.length - 1, numStates = this.states.length;
    const shares = new Float64Array(numBins * numStates);
    let bin = 0;
    for (const [start, end, state] of this.spans(row, edges[0], edges[numBins])) {
      while (bin < numBins - 1 && edges[bin + 1] <= start) bin++;
      for (let i = bin; i < numBins && edges[i] < end; i++) {
        const spent = Math.min(end, edges[i + 1]) - Math.max(start, edges[i]);
        if (spent > 0) shares[i * numStates + state] += spent / (edges[i + 1] - edges[i]);
      }
    }
    return shares;
  }

  sharesOfBins(row, edges) {
    const numBins = edges.length - 1, numStates = this.states.length;
    const shares = new Float64Array(numBins * numStates);
    for (let bin = 0; bin < numBins; bin++) {
      const first = Math.round(edges[bin] / this.binS), last = Math.round(edges[bin + 1] / this.binS);
      for (let i = first; i < last; i++) {
        const at = (row.index * this.numBins + i) * numStates;
        for (let s = 0; s < numStates; s++) shares[bin * numStates + s] += this.shares[at + s] / 255 / (last - first);
      }
    }
    return shares;
  }

  meanShares(lane, edges) {
    const sum = this.sharesOf(lane.members[0], edges);
    for (const row of lane.members.slice(1)) {
      this.sharesOf(row, edges).forEach((value, i) => { sum[i] += value; });
    }
    return sum.map((value) => value / lane.members.length);
  }
}
