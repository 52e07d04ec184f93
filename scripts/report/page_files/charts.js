// Curves over training steps, drawn by uPlot.

// Metrics that belong together share a chart; `find` selects all names that it matches, labelled by its group.
const PANELS = [
  { title: "Reward", note: "weighted sum of all functions, mean of a generation", keys: [["reward", "reward"]] },
  { title: "Reward by function", find: /^rewards\/([^/]+?)(?:_reward)?\/mean$/ },
  { title: "Spread of rewards", note: "standard deviation", keys: [["reward_std", "all rewards"]] },
  { title: "Reward variance", note: "between thoughts, and within a thought", keys: [["variance/between", "between"], ["variance/within", "within"]] },
  { title: "Reliability \u03c1", note: "share of the variance that is the thoughts' own", keys: [["variance/rho", "\u03c1"]] },
  { title: "Groups without a signal", note: "share of groups whose rewards are all equal", keys: [["thought/zero_spread", "thoughts"], ["answer/zero_spread", "answers"], ["intra/zero_spread", "within trees"], ["inter/zero_spread", "across trees"], ["advantages/zero_spread", "leaves"], ["frac_reward_zero_std", "prompts"]] },
  { title: "Lengths", note: "tokens", keys: [["thought/length", "thought"], ["answer/length", "answer"], ["completions/mean_length", "completion"]] },
  { title: "Cut short", note: "share", keys: [["rollout/cut_share", "nodes cut"], ["thought/unclosed_share", "thoughts unclosed"], ["rollout/failed_share", "prompts failed"]] },
  { title: "Forks", note: "per prompt", keys: [["fork/count", "forks"], ["fork/filled", "chains instead"]] },
  { title: "What forks are worth", note: "share", keys: [["fork/saved", "tokens saved"], ["fork/mixed", "children differ in reward"], ["fork/distinct", "leaves differ"], ["fork/different_observation", "observations differ"]] },
  { title: "Entropy at forks", note: "nats", keys: [["fork/entropy", "forks"], ["fork/threshold", "threshold"], ["fork/measured", "threshold measured"]] },
  { title: "Turns", note: "per leaf", keys: [["agent/turns", "turns with an observation"]] },
  { title: "Answers of agents", note: "share", keys: [["agent/answered_share", "leaves that answer"], ["agent/invalid_share", "turns without an action"], ["agent/one_turn_share", "trees that answer at once"]] },
  { title: "Tool calls", note: "per prompt", keys: [["tool/calls", "made"], ["tool/reused", "reused"], ["tool/replayed", "replayed"]] },
  { title: "Tool errors", note: "per prompt", find: /^tool\/errors\/(.+)$/ },
  { title: "Gradient norm", keys: [["grad_norm", "norm"]], spikes: true },
  { title: "Entropy", note: "nats", keys: [["thought/entropy", "thoughts"], ["answer/entropy", "answers"], ["entropy", "completions"]] },
  { title: "Divergence from the reference", note: "KL", keys: [["thought/kl", "thoughts"], ["answer/kl", "answers"], ["kl", "completions"]] },
  { title: "Clipped tokens", note: "share", keys: [["thought/clip_ratio/region_mean", "thoughts"], ["answer/clip_ratio/region_mean", "answers"], ["clip_ratio/region_mean", "completions"]] },
  { title: "Tokens per prompt", keys: [["tokens/generated", "generated"], ["tokens/unique", "in the tree"], ["tokens/trained", "in dense rows"]] },
  { title: "Speed", note: "tokens per second", keys: [["tokens per second", "all, of all processes"], ["rollout/tokens_per_second", "rollouts, of one process"]] },
  { title: "Seconds per step", keys: [["step_time", "all"], ["rollout/seconds", "rollouts"]] },
  { title: "Loss", keys: [["loss", "loss"]] },
  { title: "Learning rate", keys: [["learning_rate", "rate"]] },
];
const EVALUATION_KEY = /^eval_(.+)$/;
const COLOURS = ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6"];
const DASHES = [[], [6, 4], [2, 3], [10, 4, 2, 4]];

const charts = new Set();
let smoothing = 0;

function drawCurves(runs) {
  const section = byId("curves");
  for (const chart of charts) chart.plot.destroy();
  charts.clear();
  section.replaceChildren();
  const shown = runs.filter((run) => Object.keys(run.series).length);
  if (!shown.length) return;
  const slider = el("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: smoothing, "aria-label": "Smoothing",
    oninput: () => { smoothing = Number(slider.value); for (const chart of charts) chart.redraw(); } });
  section.append(sectionHead("curves", "Curves", null, el("label", { class: "inline-label" }, "Smoothing", slider)));
  const names = new Set(shown.flatMap((run) => Object.keys(run.series)));
  const evaluated = [...names].filter((name) => EVALUATION_KEY.test(name)).sort();
  const found = PANELS.map((panel) => ({ ...panel, keys: keysOf(panel, names) })).filter((panel) => panel.keys.length);
  const used = new Set([...found.flatMap((panel) => panel.keys.map(([key]) => key)), ...evaluated]);
  const isZero = (name) => shown.every((run) => !run.series[name] || run.series[name][1].every((value) => value === 0));
  const panels = found.filter((panel) => !panel.keys.every(([key]) => isZero(key)));
  const others = [...names].filter((name) => !used.has(name) && !isZero(name)).sort();
  const drawn = new Set([...panels.flatMap((panel) => panel.keys.map(([key]) => key)), ...evaluated, ...others]);
  const zero = [...names].filter((name) => !drawn.has(name)).sort();
  const grid = el("div", { class: "charts" });
  section.append(grid);
  for (const panel of panels) addChart(grid, panel, shown);
  if (evaluated.length) {
    const held = el("div", { class: "charts" });
    section.append(el("h3", { class: "subhead" }, "Evaluation by step"), held);
    for (const key of evaluated) addChart(held, { title: key.match(EVALUATION_KEY)[1], keys: [[key, "value"]] }, shown);
  }
  if (others.length) section.append(otherMetrics(others, shown));
  if (zero.length) section.append(folded("zero-metrics", `Metrics that are 0 at every step (${zero.length})`, zero));
}

function otherMetrics(names, runs) {
  const grid = el("div", { class: "charts" });
  const details = el("details", { class: "more", id: "other-metrics" },
    el("summary", {}, `All other logged metrics (${names.length})`), grid);
  details.addEventListener("toggle", () => {
    if (details.open && !grid.childElementCount) for (const name of names) addChart(grid, { title: name, keys: [[name, "value"]] }, runs);
  });
  return details;
}

function keysOf(panel, names) {
  if (panel.keys) return panel.keys.filter(([key]) => names.has(key));
  return [...names].filter((name) => panel.find.test(name)).sort().map((name) => [name, name.match(panel.find)[1].replaceAll("_", " ")]);
}

// The lines of a panel, one per run and key. Colours distinguish keys if there is one run, and runs if there are several.
function linesOf(panel, runs) {
  const lines = [];
  runs.forEach((run, r) => panel.keys.forEach(([key, label], k) => {
    if (!run.series[key]) return;
    const name = runs.length === 1 ? label : panel.keys.length === 1 ? run.name : `${run.name}: ${label}`;
    const colour = COLOURS[(runs.length === 1 ? k : r) % COLOURS.length];
    lines.push({ name, colour, dash: DASHES[(runs.length === 1 ? 0 : k) % DASHES.length], points: run.series[key], spikes: panel.spikes ? run.spikes : [] });
  }));
  return lines;
}

// [steps, values of line 1, ...] over all steps of all lines, null where a line has no value.
function aligned(lines) {
  const steps = [...new Set(lines.flatMap((line) => line.points[0]))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, i) => [step, i]));
  return [steps, ...lines.map((line) => {
    const values = new Array(steps.length).fill(null);
    line.points[0].forEach((step, i) => { values[place.get(step)] = line.points[1][i]; });
    return values;
  })];
}

// Bias-corrected exponential moving average; nulls are kept.
function smoothed(values, weight) {
  let total = 0, norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    total = weight * total + value;
    norm = weight * norm + 1;
    return total / norm;
  });
}

function addChart(grid, panel, runs) {
  const lines = linesOf(panel, runs);
  const spiked = sum(lines.map((line) => line.spikes.length));
  const note = panel.spikes ? (spiked ? `${plural(spiked, "spike")}: above ${state.data.spike_factor} times the run's mean` : "no spikes") : panel.note;
  const place = el("div", { class: "plot", role: "img", "aria-label": spoken(panel.title, lines) });
  const keys = el("div", { class: "keys" });
  grid.append(el("figure", { class: "card chart", style: { margin: 0 } },
    el("h3", {}, panel.title), el("div", { class: "note" }, note || ""), place, keys));
  const chart = { plot: null, redraw: null };
  chart.redraw = () => {
    if (chart.plot) chart.plot.destroy();
    chart.plot = plotOf(place, lines, aligned(lines), (index) => showKeys(keys, lines, chart.data, index));
    chart.data = chart.plot.data.slice(0, lines.length + 1);
    showKeys(keys, lines, chart.data, null);
  };
  chart.place = place;
  charts.add(chart);
  chart.redraw();
}

function spoken(title, lines) {
  const parts = lines.map(({ name, points: [steps, values] }) => `${name} from ${figure(values[0])} at step ${steps[0]} to ${figure(values.at(-1))} at step ${steps.at(-1)}`);
  return `${title}: ${parts.join("; ")}`;
}

function showKeys(keys, lines, data, index) {
  keys.replaceChildren(...lines.map((line, i) => {
    const values = data[i + 1];
    let at = index === null || index === undefined ? values.length - 1 : index;
    while (index === null && at > 0 && values[at] === null) at -= 1;
    return el("span", { class: "key" }, el("i", { class: line.dash.length ? "dashed" : "", style: { color: `var(${line.colour})` } }),
      lines.length > 1 || isNumber(index) ? `${line.name} ` : null, el("b", {}, figure(values[at])));
  }));
  if (isNumber(index)) keys.append(el("span", { class: "muted" }, `step ${count(data[0][index])}`));
}

function plotOf(place, lines, data, hovered) {
  const muted = cssColour("--muted"), grid = cssColour("--line"), bad = cssColour("--bad");
  const axis = { stroke: muted, font: "11.5px system-ui, sans-serif", grid: { stroke: grid, width: 1 }, ticks: { show: false } };
  const colours = lines.map((line) => cssColour(line.colour));
  const raw = data.slice(1);
  const top = smoothing ? raw.map((values) => smoothed(values, smoothing)) : raw;
  const series = lines.map((line, i) => ({ stroke: colours[i], width: 2, dash: line.dash, spanGaps: true, points: { show: data[0].length === 1, size: 6 } }));
  const behind = smoothing ? lines.map((line, i) => ({ stroke: faded(colours[i]), width: 1, spanGaps: true, points: { show: false } })) : [];
  const marks = lines.map((line) => new Set(line.spikes));
  const spiky = marks.some((steps) => steps.size);
  const spikeValues = spiky ? [data[0].map((step, i) => { const l = marks.findIndex((steps) => steps.has(step)); return l < 0 ? null : raw[l][i]; })] : [];
  return new uPlot({
    width: Math.max(180, place.clientWidth), height: 176,
    padding: [8, 10, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: "steps" }, points: { size: 7 }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { range: (plot, low, high) => paddedRange(low, high) } },
    axes: [{ ...axis, space: 60, size: 26, values: (plot, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? count(tick) : "")) },
      { ...axis, space: 34, size: 54, values: (plot, ticks) => tickLabels(ticks) }],
    series: [{}, ...series, ...behind, ...(spiky ? [{ stroke: bad, width: 0, paths: () => null, points: { show: true, size: 9, stroke: bad, fill: "transparent", width: 2 } }] : [])],
    hooks: { setCursor: [(plot) => hovered(plot.cursor.idx ?? null)] },
  }, [data[0], ...top, ...(smoothing ? raw : []), ...spikeValues], place);
}

const faded = (colour) => colour.replace(/^rgb\(([^)]+)\)$/, "rgba($1, 0.3)");

function paddedRange(low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === 0 && high === 0) return [0, 1];
  if (low === high) { const room = Math.abs(low) * 0.1 || 0.5; return [low - room, high + room]; }
  const room = (high - low) * 0.06;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

// As many digits as are needed to distinguish adjacent ticks.
function tickLabels(ticks) {
  const step = Math.abs((ticks[1] ?? ticks[0] + 1) - ticks[0]);
  const largest = Math.max(...ticks.map(Math.abs));
  let digits = 0;
  while (digits < 6 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
  return ticks.map((tick) => {
    if (tick === 0) return "0";
    if (largest >= 1e4) return minus(largest >= 1e6 ? `${+(tick / 1e6).toPrecision(4)}M` : `${+(tick / 1e3).toPrecision(4)}k`);
    if (largest < 1e-3) return minus(tick.toExponential(1)).replace("e-", "e\u2212");
    return minus(tick.toFixed(digits));
  });
}

function resizeCharts() {
  for (const chart of charts) if (chart.place.clientWidth) chart.plot.setSize({ width: Math.max(180, chart.place.clientWidth), height: 176 });
}
