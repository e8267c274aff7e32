"use strict";
// One small figure a metric, the runs over each other.

const FEWEST_SMOOTHED = 60;
const FEWEST_WITHOUT_MARKERS = 25;
let overTime = false;

// Over the neighbours on each side that are known, fewer at the ends.
function movingMean(values, width) {
  const result = [];
  let sum = 0, count = 0, low = 0, high = 0;
  const change = (value, sign) => {
    if (value === null) return;
    sum += sign * value;
    count += sign;
  };
  for (let i = 0; i < values.length; i++) {
    for (; high < Math.min(values.length, i + width + 1); high++) change(values[high], 1);
    for (; low < i - width; low++) change(values[low], -1);
    result.push(count ? sum / count : null);
  }
  return result;
}

function xOf(cycles) {
  return overTime && cycles["training/time_s"] ? cycles["training/time_s"].map((t) => t / UNIT.s) : cycles.step;
}

function runTraces(chart, run, index) {
  const y = run.cycles[chart.metric], name = escapeText(run.name), ink = runColor(index);
  if (!y) return [];
  const format = chart.is_share ? ".1%" : ".4~g";
  const hover = (before, after) => `${before}%{y:${format}}${after}<extra>${name}</extra>`;
  const common = { x: xOf(run.cycles), type: "scatter", mode: "lines", name, hovertemplate: hover("", "") };
  const line = { color: ink, dash: runDash(index), width: 2 };
  const traces = [];
  if (y.length < FEWEST_SMOOTHED) {
    const mode = y.length < FEWEST_WITHOUT_MARKERS ? "lines+markers" : "lines";
    traces.push({ ...common, y, line, mode, marker: { size: 5 } });
  } else {
    const mean = movingMean(y, Math.floor(y.length / 30));
    traces.push({ ...common, y, line: { color: ink, width: 1 }, opacity: 0.4 });
    traces.push({ ...common, y: mean, line: { ...line, width: 2.5 }, hoverinfo: "skip", hovertemplate: null });
  }
  const also = chart.also && run.cycles[chart.also];
  if (also) {
    const dotted = { color: ink, width: 1, dash: "dot" };
    traces.push({ ...common, y: also, line: dotted, hovertemplate: hover("", " at most") });
  }
  if (chart.has_validation && run.validation.step.length && !overTime) {
    const { step, reward } = run.validation;
    const marker = { color: ink, size: 9, symbol: "diamond-open", line: { width: 2 } };
    traces.push({ ...common, x: step, y: reward, mode: "markers", marker, hovertemplate: hover("validation ", "") });
  }
  return traces;
}

// Instead of curves, or beside ones that mean nothing.
function remarks(chart, isKnown) {
  const isMade = chart.has_validation && PAGE.runs.every((run) => (
    run.is_simulated && (run.cycles[chart.metric] || []).every((reward) => !reward)
  ));
  if (isKnown && !isMade) return [];
  const text = isMade ? "no model learns in a simulation" : "not recorded";
  return [{ text, showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.6 }];
}

function drawChart(chart, figure) {
  const traces = PAGE.runs.flatMap((run, i) => (hiddenRuns.has(i) ? [] : runTraces(chart, run, i)));
  const visible = traces.length > 0;
  const xaxis = axis({
    visible, title: { text: overTime ? `time (${UNIT.name})` : "cycle" }, hoverformat: overTime ? ".4~g" : ",d",
    spikecolor: color("muted"), spikethickness: 1,
    unifiedhovertitle: { text: overTime ? `%{x} ${UNIT.name}` : "cycle %{x}" },
  });
  const yaxis = axis({ visible, nticks: 6, rangemode: chart.metric.endsWith("rewards/mean") ? "normal" : "tozero" });
  if (chart.is_share) Object.assign(yaxis, { tickformat: ".0%", range: [0, 1.02] });
  if (chart.unit === "tokens/s") yaxis.tickformat = "~s";
  // With another meaning of x the figure starts over; everything else keeps the zoom.
  const uirevision = String(overTime);
  Plotly.react(figure, traces, layout({
    height: 250, hovermode: "x unified", xaxis, yaxis, annotations: remarks(chart, visible), uirevision,
  }), CONFIG);
}

function makeCard(chart, box) {
  const card = element("div", "card"), figure = element("div", "figure");
  const title = chart.unit ? `${chart.title}, ${chart.unit}` : chart.title;
  card.append(element("h3", "", title), element("p", "meaning", chart.meaning), figure);
  figure.setAttribute("role", "img");
  const names = PAGE.runs.map((run) => run.name).join(", ");
  figure.setAttribute("aria-label", `${title}: ${chart.meaning}. Runs: ${names}.`);
  box.append(card);
  return figure;
}

function showCharts() {
  const box = document.getElementById("charts");
  const figures = PAGE.charts.map((chart) => makeCard(chart, box));
  const draw = () => PAGE.charts.forEach((chart, i) => drawChart(chart, figures[i]));
  document.getElementById("axis").addEventListener("change", (event) => {
    overTime = event.target.value === "time";
    draw();
  });
  redraws.push(draw);
  draw();
}

showCharts();
