// Draws over time what the page's tables say, with uPlot. Without this script the tables are what is seen.
(() => {
"use strict";
const WINDOW_S = 180;
// No line is drawn over a longer gap.
const GAP_S = 5;
// Who wants little motion gets a time axis that moves on so rarely.
const CALM_S = 60;
const HEIGHT = 130;
const AXIS_WIDTH = 72;
// No button enlarges more than that.
const LEAST_S = 5;
const SAMPLE_S = 0.25;
const dark = matchMedia("(prefers-color-scheme: dark)");
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
const digits = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3, useGrouping: false });
const scaled = (value, step, units) => {
  let at = 0;
  for (; value >= step && at + 1 < units.length; at += 1) { value /= step; }
  return digits(value) + " " + units[at];
};

// What is drawn of each kind: its panels, its lines (name, colour of the style, dashes), and its scale.
const LATENCY = {
  key: "latency",
  panels: ["All", "Network", "Exporter", "Device"],
  lines: [["median", "--link", []], ["99 %", "--quiet", [5, 3]], ["99.9 %", "--alert", [2, 2]]],
  what: "latency of each second; the tables below have the numbers",
  written: (us) => us < 1e6 ? scaled(us, 1000, ["µs", "ms"]) : digits(us / 1e6) + " s",
  isLogarithmic: true,
};
const RATES = {
  key: "rates",
  named: () => "Rate",
  lines: [["from the device", "--link", []], ["to the device", "--alert", [5, 3]]],
  what: "bytes a second since this page was opened; the table of its traffic has the present ones",
  written: (bytes) => scaled(bytes, 1000, ["B", "kB", "MB", "GB"]) + "/s",
  isLogarithmic: false,
};
const LINKS = {
  ...RATES,
  key: "links",
  named: (lane) => "Lane " + lane,
  lines: [["received", "--link", []], ["sent", "--alert", [5, 3]]],
  what: "bytes a second since this page was opened; the table of its links has the present ones",
};

function made(kind, into, attributes = {}, text = "") {
  const element = document.createElement(kind);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  element.textContent = text;
  into.append(element);
  return element;
}

// The colours of the style, read once: each asking makes the browser lay out what has changed.
const colours = new Map();
function colour(name) {
  if (!colours.has(name)) { colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim()); }
  return colours.get(name);
}
dark.addEventListener("change", () => colours.clear());
const alone = (u, at) => u.data[at].flatMap((value, i, all) =>
  value !== null && (all[i - 1] ?? null) === null && (all[i + 1] ?? null) === null ? [i] : []);

// Rows of a time and its values as columns; a row of nothing is where nothing was measured for a while.
function columns(rows, width) {
  const all = [];
  rows.forEach((row, at) => {
    if (at > 0 && row[0] - rows[at - 1][0] > GAP_S) { all.push([rows[at - 1][0] + 1, ...Array(width).fill(null)]); }
    all.push(row);
  });
  return Array.from({ length: width + 1 }, (_, column) => all.map((row) => row[column]));
}

// Panels over one time, with one legend: what is read, enlarged or left out in one is so in all.
class Plots {
  constructor(section, kind) {
    this.kind = kind;
    this.zoom = null;
    // The time that was read last.
    this.at = null;
    this.hidden = new Set();
    this.whole = [0, 1];
    this.bounds = [0.1, 1];
    section.hidden = false;
    const legend = made("div", section, { class: "legend", role: "group", "aria-label": "Lines that are drawn" });
    kind.lines.forEach(([name], at) => {
      const button = made("button", legend, { type: "button", "aria-pressed": "true" });
      made("span", button, { class: "key key-" + kind.key + "-" + at, "aria-hidden": "true" });
      button.append(name);
      button.addEventListener("click", () => this.toggle(at, button));
    });
    const closer = made("button", legend, { type: "button" }, "Enlarge");
    closer.addEventListener("click", () => this.halve());
    this.all = made("button", legend, { type: "button", hidden: "" }, "Show all");
    this.all.addEventListener("click", () => this.enlarge(null));
    this.section = section;
    this.panels = [];
    dark.addEventListener("change", () => this.panels.forEach(({ u }) => u.redraw(false)));
    calm.addEventListener("change", () => this.scale());
    new ResizeObserver(() => requestAnimationFrame(() => this.fit())).observe(section);
  }

  // Adds a panel below the others.
  add(name) {
    const { kind, section } = this;
    const figure = made("figure", section);
    const caption = made("figcaption", figure, {}, name + " ");
    const reading = made("span", caption, { id: "reading-" + kind.key + "-" + name.toLowerCase().replace(" ", "-") });
    const label = "Plot over time, " + name + ": " + kind.what;
    const box = made("div", figure, { role: "img", tabindex: "0", "aria-label": label, "aria-describedby": reading.id });
    const axis = {
      stroke: () => colour("--quiet"),
      grid: { stroke: () => colour("--card"), width: 1 },
      ticks: { stroke: () => colour("--card"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    const u = new uPlot({
      width: box.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false },
        sync: { key: kind.key },
        bind: { dblclick: () => () => { this.enlarge(null); return null; } },
      },
      scales: {
        x: { time: false, auto: false, range: () => this.shown() },
        y: kind.isLogarithmic ? { distr: 3, log: 10, range: () => this.bounds } : { range: () => this.bounds },
      },
      axes: [
        { ...axis, size: 30, space: 64, values: (_, splits) => splits.map(clock), incrs: [1, 5, 10, 15, 30, 60, 90] },
        {
          ...axis,
          size: AXIS_WIDTH,
          space: 16,
          values: (_, splits) => splits.map((at) => at === null ? "" : kind.written(at)),
        },
      ],
      series: [{}, ...kind.lines.map(([label, name, dash], at) => ({
        label,
        dash,
        show: !this.hidden.has(at),
        width: 1.5,
        stroke: () => colour(name),
        points: { show: false, size: 4, filter: alone },
      }))],
      hooks: {
        setCursor: [(u) => this.read(u, reading)],
        setSelect: [(u) => {
          const { left, width } = u.select;
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          if (width > 4) { this.enlarge([u.posToVal(left, "x"), u.posToVal(left + width, "x")]); }
        }],
      },
    }, [[], ...kind.lines.map(() => [])], box);
    // The arrows read the plot without a mouse.
    box.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const [times] = u.data;
      if (step === undefined || times.length === 0) { return; }
      event.preventDefault();
      const at = Math.min(Math.max((u.cursor.idx ?? times.length - 1) + step, 0), times.length - 1);
      u.setCursor({ left: u.valToPos(times[at], "x"), top: 0 }, true, true);
    });
    box.addEventListener("blur", () => u.setCursor({ left: -10, top: -10 }, true, true));
    box.plot = u;
    this.panels.push({ u, box, reading });
  }

  // Says what the lines have where the cursor is, or else at last.
  read(u, reading) {
    const [times] = u.data;
    this.at = times[u.cursor.idx] ?? this.at;
    const at = u.cursor.idx ?? times.length - 1;
    if (at < 0) { return; }
    reading.textContent = clock(times[at]);
    this.kind.lines.forEach(([name], line) => {
      if (!u.series[line + 1].show) { return; }
      const value = u.data[line + 1][at] ?? null;
      reading.append(", ");
      made("span", reading, {}, name + " " + (value === null ? "–" : this.kind.written(value)));
    });
  }

  toggle(at, button) {
    const isShown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", isShown);
    if (isShown) { this.hidden.delete(at); } else { this.hidden.add(at); }
    this.panels.forEach(({ u, reading }) => { u.setSeries(at + 1, { show: isShown }); this.read(u, reading); });
  }

  shown() {
    return this.zoom ?? this.whole;
  }

  enlarge(zoom) {
    this.zoom = zoom;
    if (zoom === null) { this.at = null; }
    this.all.hidden = zoom === null;
    this.scale();
  }

  // Shows half of the time, around what is read, or else the last half: fingers and keys draw no frame.
  halve() {
    const [min, max] = this.shown();
    const half = (max - min) / 2;
    if (half < LEAST_S) { return; }
    const from = Math.min(Math.max((this.at ?? max) - half / 2, min), max - half);
    this.enlarge([from, from + half]);
  }

  scale() {
    const [min, max] = this.shown();
    this.panels.forEach(({ u }) => u.setScale("x", { min, max }));
  }

  fit() {
    for (const { u, box } of this.panels) {
      if (box.clientWidth > 0 && box.clientWidth !== u.width) { u.setSize({ width: box.clientWidth, height: HEIGHT }); }
    }
  }

  // Draws other numbers: for each panel rows of a time and the values of its lines.
  draw(panels) {
    const width = this.kind.lines.length;
    const last = Math.max(...panels.map((rows) => rows.at(-1)?.[0] ?? 0));
    const end = calm.matches ? Math.ceil(last / CALM_S) * CALM_S : last;
    this.whole = [end - WINDOW_S, end];
    const values = panels.flat().flatMap((row) => row.slice(1)).filter((value) => value !== null);
    const [least, most] = [values.reduce((one, other) => Math.min(one, other), Infinity), Math.max(0, ...values)];
    if (!this.kind.isLogarithmic) {
      this.bounds = [0, Math.max(10, most * 1.1)];
    } else if (most > 0) {
      const low = Math.floor(Math.log10(least));
      this.bounds = [10 ** low, 10 ** Math.max(low + 1, Math.ceil(Math.log10(most)))];
    }
    this.panels.forEach(({ u, reading }, at) => {
      u.setData(columns(panels[at], width), false);
      this.read(u, reading);
    });
    this.scale();
  }
}

// Latency: the server has the last three minutes, and sends them when there is a further second.
const latency = { plots: null, drawn: null, epoch: 0, last: Infinity };
function drawLatency() {
  const section = document.getElementById("latency-plots");
  const said = document.getElementById("latency-seconds")?.dataset.seconds;
  if (!section || said === undefined || said === latency.drawn) { return; }
  latency.drawn = said;
  const seconds = JSON.parse(said);
  const [last, ago] = seconds.at(-1);
  // A second's number says when it was, so that a line stays where it is. Another session counts anew.
  if (last === null || last < latency.last) { latency.epoch = Math.round(Date.now() / 1000) - ago - (last ?? -ago); }
  latency.last = last ?? Infinity;
  const lines = LATENCY.lines.length;
  const rows = (panel) => seconds.map(([number, ago, ...values]) => [
    latency.epoch + (number ?? -ago),
    ...values.slice(panel * lines, (panel + 1) * lines).map((us) => us > 0 ? us : null),
  ]);
  if (!latency.plots) {
    latency.plots = new Plots(section, LATENCY);
    LATENCY.panels.forEach((name) => latency.plots.add(name));
  }
  latency.plots.draw(LATENCY.panels.map((_, panel) => rows(panel)));
}

// Rates: the server has the present ones. What they were is known since this page was opened.
function sampler(kind, source) {
  let plots = null;
  const all = new Map();
  return () => {
    const section = document.getElementById(kind.key + "-plots");
    const said = document.getElementById(source)?.dataset.rates;
    if (!section || said === undefined || events?.readyState !== EventSource.OPEN) { return; }
    const now = Date.now() / 1000;
    for (const [name, ...rates] of said.split(" ").map((text) => text.split(":"))) {
      if (!all.has(name)) {
        all.set(name, []);
        plots ??= new Plots(section, kind);
        plots.add(kind.named(name));
      }
      const rows = all.get(name);
      if (rows.length > 1 && now - rows.at(-2)[0] < SAMPLE_S) { rows.pop(); }
      rows.push([now, ...rates.map(Number)]);
    }
    // What has gone stays until its last moment is out of sight.
    for (const rows of all.values()) {
      while (rows.length > 0 && now - rows[0][0] > WINDOW_S) { rows.shift(); }
    }
    plots.draw([...all.values()]);
  };
}
const samplers = [sampler(RATES, "traffic"), sampler(LINKS, "links")];
const drawRates = () => samplers.forEach((sample) => sample());

document.addEventListener("shown", () => { drawLatency(); drawRates(); });
// A rate that stays as it is makes no event.
setInterval(drawRates, 1000);
drawLatency();
drawRates();
})();
