"use strict";
// Shared by the figures: data, colours, units, axes.

const PAGE = JSON.parse(document.getElementById("page-data").textContent);
const NARROW_PX = 600;
const IS_TOUCH = matchMedia("(pointer: coarse)").matches;
const LENGTH_S = Math.max(...PAGE.runs.map((run) => run.length_s));
const UNIT = unitOf(LENGTH_S);
const hiddenRuns = new Set();
const redraws = [];  // one function a kind of figure

function unitOf(seconds) {
  if (seconds < 1) return { name: "ms", s: 1e-3 };
  if (seconds < 600) return { name: "s", s: 1 };
  return seconds < 4 * 3600 ? { name: "min", s: 60 } : { name: "h", s: 3600 };
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function runColor(index) {
  return color(`run-${index % PAGE.dashes.length}`);
}

function runDash(index) {
  return PAGE.dashes[index % PAGE.dashes.length];
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function escapeText(text) {
  // Plotly takes labels for a little HTML.
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function axis(more) {
  const line = color("line");
  const title = { standoff: 6, font: { size: 12 }, ...more.title };
  return { gridcolor: line, linecolor: line, zerolinecolor: line, ticks: "", ...more, title };
}

function layout(more) {
  const shared = {
    autosize: true, showlegend: false, dragmode: IS_TOUCH ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: color("surface"),
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12, color: color("ink") },
    margin: { l: 52, r: 10, t: 6, b: 38 },
    hoverlabel: {
      bgcolor: color("background"), bordercolor: color("line"), namelength: 28,
      font: { color: color("ink"), size: 12 },
    },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("muted"), activecolor: color("ink") },
  };
  return Object.assign(shared, more);
}

// The buttons are named one by one: the library has others that send data away.
const CONFIG = {
  displaylogo: false, responsive: true, displayModeBar: IS_TOUCH ? true : "hover",
  showSendToCloud: false, showEditInChartStudio: false, showLink: false, plotlyServerURL: "",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
};

function lineSwatch(index) {
  const patterns = {
    solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3",
  };
  const ink = `stroke="var(--run-${index % PAGE.dashes.length})" stroke-dasharray="${patterns[runDash(index)]}"`;
  return swatch(`<line x1="0" y1="6" x2="34" y2="6" stroke-width="3" ${ink}/>`, 34);
}

function swatch(content, width) {
  const holder = document.createElement("span");
  holder.innerHTML = `<svg width="${width}" height="12" aria-hidden="true">${content}</svg>`;
  return holder.firstChild;
}

function redraw() {
  redraws.forEach((draw) => draw());
}

function showRunSwitches() {
  const box = document.getElementById("runs");
  PAGE.runs.forEach((run, index) => {
    const label = element("label");
    const input = element("input");
    input.type = "checkbox";
    input.checked = true;
    input.addEventListener("change", () => {
      if (input.checked) hiddenRuns.delete(index); else hiddenRuns.add(index);
      redraw();
    });
    label.append(input, lineSwatch(index), element("span", "", run.name + (run.is_simulated ? " (simulated)" : "")));
    box.append(label);
  });
}

showRunSwitches();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
