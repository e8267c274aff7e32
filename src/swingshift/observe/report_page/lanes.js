"use strict";
// The figures of the lanes. Few spans in sight: each as a bar. Many: shares of bins of time, anew at every zoom.

const MAX_BARS = 3000;
const MAX_LANES = 16;  // more devices are grouped by kind
const MAX_STACKED = 32;
const MAX_CELLS = 200000;
const MAX_BOUNDARIES = 40;
const LANE_PX = 34, LEVELS_PX = 80, LEVELS_GAP_PX = 24;
const MARGIN = { r: 12, t: 6, b: 40 };
let windowS = null;  // [left, right] in seconds, null: everything
let view = "kinds";

// Plotly tells the ends of a range one by one or together.
function rangeIn(event, name) {
  if (`${name}.range[0]` in event) return [event[`${name}.range[0]`], event[`${name}.range[1]`]];
  return event[`${name}.range`] || null;
}

function cycleEnds(run, left, right) {
  const ends = (run.cycles["training/time_s"] || []).filter((t) => t > left && t < right);
  if (ends.length > MAX_BOUNDARIES || run.cycles.per_point > 1) return [];
  const line = { color: color("muted"), width: 1, dash: "dot" };
  return ends.map((t) => ({ type: "line", x0: t / UNIT.s, x1: t / UNIT.s, yref: "paper", y0: 0, y1: 1, line }));
}

class LanesFigure {
  constructor(run, index, box) {
    Object.assign(this, { run, index, lanes: new Lanes(run.lanes), rowsRange: null });
    this.card = element("div", "card");
    this.figure = element("div", "figure");
    this.note = element("p", "state");
    this.figure.setAttribute("role", "img");
    this.figure.setAttribute("aria-label", `What each device of ${run.name} did when; the summary has the totals.`);
    this.card.append(element("h3", "", run.name), this.note, this.figure);
    box.append(this.card);
  }

  get all() {
    return view === "each" || this.lanes.rows.length <= MAX_LANES ? this.lanes.each : this.lanes.kinds;
  }

  draw() {
    this.card.hidden = hiddenRuns.has(this.index);
    if (this.card.hidden) return;
    const [left, right] = windowS || [0, LENGTH_S];
    const [top, bottom] = this.rowsRange || [0, this.all.length];
    const placed = this.all.map((lane, place) => ({ lane, place }));
    const shown = placed.filter(({ place }) => place + 1 > top && place < bottom);
    const levels = levelTraces(this.run, this.index);
    const traces = [...this.laneTraces(shown, left, right), ...levels];
    Plotly.react(this.figure, traces, this.layout(shown, [left, right], [bottom, top], levels.length > 0), CONFIG);
    if (!this.listens) {
      this.figure.on("plotly_relayout", (event) => this.zoomed(event));
      this.listens = true;
    }
  }

  layout(shown, [left, right], rows, hasLevels) {
    const count = this.all.length;
    const lanesPx = count <= MAX_STACKED ? LANE_PX * Math.max(2, count) : Math.min(900, Math.max(420, 3 * count));
    const lower = hasLevels ? LEVELS_PX + LEVELS_GAP_PX : 0, plot = lanesPx + lower;
    return layout({
      height: plot + MARGIN.t + MARGIN.b, margin: { ...MARGIN, l: innerWidth < NARROW_PX ? 92 : 120 },
      barmode: "overlay", hovermode: "closest", plot_bgcolor: color("background"),
      shapes: cycleEnds(this.run, left, right),
      xaxis: axis({
        range: [left / UNIT.s, right / UNIT.s], title: { text: `time since the start (${UNIT.name})` },
        anchor: hasLevels ? "y2" : "y", showgrid: false, zeroline: false,
      }),
      yaxis: axis({
        range: rows, domain: [lower / plot, 1], zeroline: false, showgrid: false, fixedrange: count <= MAX_LANES,
        ...this.ticks(shown),
      }),
      yaxis2: axis({
        domain: [0, hasLevels ? LEVELS_PX / plot : 0.01], visible: hasLevels, fixedrange: true,
        rangemode: "tozero", nticks: 4, title: { text: "groups" },
      }),
    });
  }

  ticks(shown) {
    const every = Math.ceil(shown.length / 40);
    const ticked = shown.filter((_, i) => i % every === 0);
    return {
      tickmode: "array",
      tickvals: ticked.map(({ place }) => place + 0.5),
      ticktext: ticked.map(({ lane }) => escapeText(lane.label)),
    };
  }

  laneTraces(shown, left, right) {
    if (!shown.length) {
      this.note.textContent = "No device spans were recorded.";
      return [];
    }
    const isSingle = shown.every(({ lane }) => lane.members.length === 1), hasSpans = this.lanes.kind === "spans";
    const rows = shown.map(({ lane }) => lane.members[0]);
    if (isSingle && hasSpans && this.lanes.countSpans(rows, left, right, MAX_BARS) <= MAX_BARS) {
      this.note.textContent = "Every span.";
      return spanBars(this.lanes, shown, left, right);
    }
    const isStacked = shown.length <= MAX_STACKED;
    const fitting = Math.floor(MAX_CELLS / (shown.length * (isStacked ? ROWS_A_LANE : 1)));
    const edges = this.lanes.edges(left, right, Math.max(20, Math.min(this.figure.clientWidth - 130, fitting)));
    const closer = hasSpans ? "Zoom in to see single spans." : "The page has no single spans of this run.";
    const what = isStacked ? "Stacked shares of the time" : "The state with the largest share";
    const mean = isSingle ? "" : ", mean over the devices of a kind";
    this.note.textContent = `${what} in bins of ${duration(edges[1] - edges[0])}${mean}. ${closer}`;
    return binImage(this.lanes, shown, edges, isStacked);
  }

  zoomed(event) {
    const x = rangeIn(event, "xaxis"), y = rangeIn(event, "yaxis");
    if (x) {
      const [left, right] = [Math.max(0, x[0] * UNIT.s), Math.min(LENGTH_S, x[1] * UNIT.s)];
      windowS = right - left > LENGTH_S * 1e-7 ? [left, right] : null;
    } else if (event["xaxis.autorange"]) {
      windowS = null;
    }
    if (y) {
      const top = Math.max(0, Math.floor(Math.min(...y)));
      const bottom = Math.min(this.all.length, Math.ceil(Math.max(...y)));
      this.rowsRange = bottom > top ? [top, bottom] : null;
    } else if (event["yaxis.autorange"]) {
      this.rowsRange = null;
    }
    if (x || y || event["xaxis.autorange"] || event["yaxis.autorange"]) drawLanes();
  }
}

const figures = PAGE.runs.map((run, index) => new LanesFigure(run, index, document.getElementById("lanes")));

function drawLanes() {
  figures.forEach((figure) => figure.draw());
}

function showStates() {
  const box = document.getElementById("states");
  for (const state of PAGE.runs[0].lanes.states) {
    const label = element("span");
    const place = 'x="0.5" y="0.5" width="15" height="11" rx="2" stroke="var(--line)"';
    label.append(swatch(`<rect ${place} fill="var(--state-${state})"/>`, 16), state);
    box.append(label);
  }
}

function showViews() {
  const choice = document.getElementById("view");
  choice.hidden = figures.every((figure) => figure.lanes.rows.length <= MAX_LANES);
  choice.addEventListener("change", (event) => {
    view = event.target.value;
    figures.forEach((figure) => { figure.rowsRange = null; });
    drawLanes();
  });
}

showStates();
showViews();
redraws.push(drawLanes);
drawLanes();
