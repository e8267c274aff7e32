"use strict";
// What of the lanes is drawn: each span as a bar, or bins of time as an image.

const ROWS_A_LANE = 20;  // of the image; the two at each edge stay empty
const EDGE_ROWS = 2;

function clock(seconds, step) {
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / UNIT.s)) + 1));
  return `${(seconds / UNIT.s).toFixed(digits)} ${UNIT.name}`;
}

function duration(seconds) {
  return seconds < 1 ? `${+(seconds * 1e3).toPrecision(4)} ms` : `${+seconds.toPrecision(4)} s`;
}

// shown: lanes with their places, counted from the top.
function spanBars(lanes, shown, left, right) {
  const traces = lanes.states.map((state) => ({
    type: "bar", orientation: "h", name: state, width: 0.8, base: [], x: [], y: [], text: [], textposition: "none",
    marker: { color: color(`state-${state}`), line: { width: 0 } }, hovertemplate: "%{text}<extra></extra>",
  }));
  for (const { lane, place } of shown) {
    const name = escapeText(lane.label);
    for (const [start, end, state] of lanes.spans(lane.members[0], left, right)) {
      const trace = traces[state], length = end - start;
      trace.base.push(start / UNIT.s);
      trace.x.push(length / UNIT.s);
      trace.y.push(place + 0.5);
      const when = `from ${clock(start, length)} to ${clock(end, length)}`;
      trace.text.push(`<b>${name}</b> ${lanes.states[state]} ${duration(length)}<br>${when}`);
    }
  }
  return traces;
}

function shareText(lanes, lane, shares, bin, edges) {
  const numStates = lanes.states.length, length = edges[bin + 1] - edges[bin];
  const all = lanes.states.map((state, s) => [shares[bin * numStates + s], state]);
  const known = all.filter(([share]) => share >= 5e-4);
  const parts = known.sort((a, b) => b[0] - a[0]).map(([share, state]) => `${state} ${(100 * share).toFixed(1)}%`);
  const mean = lane.members.length > 1 ? ", mean" : "";
  const when = `${clock(edges[bin], length)} to ${clock(edges[bin + 1], length)}`;
  return `<b>${escapeText(lane.label)}</b>${mean}<br>${when}<br>${parts.join("<br>") || "nothing known"}`;
}

// Rows of one lane in one bin from the bottom, in the order of the states and in proportion to their shares.
function stackedRows(shares, bin, numStates) {
  const rows = new Array(ROWS_A_LANE).fill(null);
  const usable = ROWS_A_LANE - 2 * EDGE_ROWS;
  let filled = 0, sum = 0;
  for (let s = 0; s < numStates; s++) {
    sum += shares[bin * numStates + s];
    for (; filled < Math.round(sum * usable); filled++) rows[EDGE_ROWS + filled] = s;
  }
  return rows;
}

function largestState(shares, bin, numStates) {
  let best = null, most = 1e-3;
  for (let s = 0; s < numStates; s++) {
    if (shares[bin * numStates + s] > most) {
      most = shares[bin * numStates + s];
      best = s;
    }
  }
  return best;
}

function binImage(lanes, shown, edges, isStacked) {
  const numStates = lanes.states.length, numBins = edges.length - 1, numRows = isStacked ? ROWS_A_LANE : 1;
  const z = [], text = [], y = [];
  const ofBins = (make) => Array.from({ length: numBins }, (_, bin) => make(bin));
  for (const { lane, place } of shown) {
    const shares = lanes.meanShares(lane, edges);
    const texts = ofBins((bin) => shareText(lanes, lane, shares, bin, edges));
    const columns = ofBins((bin) => (
      isStacked ? stackedRows(shares, bin, numStates) : [largestState(shares, bin, numStates)]
    ));
    for (let row = 0; row < numRows; row++) {
      z.push(columns.map((column) => column[numRows - 1 - row]));
      text.push(texts);
      y.push(place + (row + 0.5) / numRows);
    }
  }
  const colorscale = lanes.states.flatMap((state, s) => {
    const ink = color(`state-${state}`);
    return [[s / numStates, ink], [(s + 1) / numStates, ink]];
  });
  return [{
    type: "heatmap", x: edges.map((edge) => edge / UNIT.s), y, z, text, hovertemplate: "%{text}<extra></extra>",
    hoverongaps: false, zmin: -0.5, zmax: numStates - 0.5, colorscale, showscale: false,
  }];
}

// Groups in the queue and in flight; of runs that have not recorded them the queue after each cycle.
function levelTraces(run, index) {
  const trace = (name, dash, ink, timeS, groups) => ({
    type: "scatter", mode: "lines", yaxis: "y2", name, line: { shape: "hv", dash, width: 1.5, color: ink },
    x: timeS.map((t) => t / UNIT.s), y: groups, hovertemplate: `%{y:,d} groups<extra>${name}</extra>`,
  });
  if (run.levels.num_points) {
    const { queued, in_flight: inFlight } = run.levels;
    return [
      trace("in flight", "dot", color("muted"), inFlight.time_s, inFlight.groups),
      trace("queue", "solid", runColor(index), queued.time_s, queued.groups),
    ];
  }
  const timeS = run.cycles["training/time_s"], queue = run.cycles["dynamic_resource/mq_size"];
  return timeS && queue ? [trace("queue", "solid", runColor(index), timeS, queue)] : [];
}
