// Reads the data embedded in the page, draws its sections, and polls for changes on a live page.
//
// data: {title, made, notes, spike_factor, pictures: [[start, length]],
//   runs: [{name, series: {name: [steps, values]}, spikes, progress, settings, trees}],
//   evaluations: [{name, metrics, counts, statuses, settings, items}]}

const POLL = 2500; // milliseconds
const SECTIONS = [["overview", "Overview"], ["curves", "Curves"], ["metrics", "Metrics"], ["trees", "Trees"], ["settings", "Settings"], ["compare", "Side by side"], ["gallery", "Predictions"]];
const state = { data: null, version: null, drawn: {} };

function draw(data, pictures) {
  state.data = data;
  state.version = data.version;
  picturePlaces = data.pictures;
  pictureText = pictures;
  byId("title").textContent = data.title;
  const parts = [data.runs.length ? plural(data.runs.length, "training run") : "", data.evaluations.length ? plural(data.evaluations.length, "evaluation") : "", `as of ${data.made}`];
  byId("subtitle").textContent = parts.filter(Boolean).join(", ");
  drawOverview(data);
  drawCurves(data.runs);
  const sources = [...data.runs, ...data.evaluations];
  ifNew("metrics", data.evaluations.map(({ name, metrics }) => [name, metrics]), () => drawMetrics(data.evaluations));
  ifNew("gallery", data.evaluations, () => drawGallery(data.evaluations));
  ifNew("trees", data.runs.map(({ name, trees }) => [name, trees]), () => drawTrees(data.runs));
  ifNew("compare", [data.evaluations, data.runs.map(({ name, trees }) => [name, trees])], () => drawCompare(data));
  ifNew("settings", sources.map(({ name, settings }) => [name, settings]), () => drawSettings(data));
  byId("nav").replaceChildren(...SECTIONS.filter(([id]) => byId(id).childElementCount).map(([id, name]) => el("a", { href: `#${id}` }, name)));
}

// On a live page, a section with unchanged data is kept, with its filters, sorting, length and focus.
function ifNew(id, content, drawSection) {
  if (document.body.dataset.live === "yes") {
    const text = JSON.stringify(content);
    if (state.drawn[id] === text) return;
    state.drawn[id] = text;
  }
  drawSection();
}

function drawOverview(data) {
  const section = byId("overview");
  section.replaceChildren(el("h2", { id: "overview-title", hidden: true }, "Overview"));
  const sources = data.runs.length + data.evaluations.length;
  const group = (name, tiles) => (tiles.length ? el("div", { class: "tile-group" }, sources > 1 ? el("h3", {}, name) : null, el("div", { class: "tiles" }, tiles)) : null);
  section.append(...[...data.runs.map((run) => group(run.name, runTiles(run))), ...data.evaluations.map((evaluation) => group(evaluation.name, evaluationTiles(evaluation)))].filter(Boolean));
  if (data.notes.length) section.append(el("div", { class: "notes" }, el("ul", {}, data.notes.map((note) => el("li", {}, note)))));
}

const tile = (name, value, note) => el("div", { class: "card tile" }, el("span", {}, name), el("b", {}, value), note ? el("span", { class: "small" }, note) : null);

// Means of the first and the last tenth, so that no single step represents a run.
function ends(points) {
  const tenth = Math.max(1, Math.round(points[1].length / 10));
  return [mean(points[1].slice(0, tenth)), mean(points[1].slice(-tenth))];
}

function runTiles(run) {
  const { step, max_steps: most, seconds_left: left } = run.progress;
  const tiles = [];
  if (run.series.reward) { const [first, last] = ends(run.series.reward); tiles.push(tile("Reward", figure(last), `from ${figure(first)} at the start`)); }
  const accuracy = Object.keys(run.series).find((name) => /^rewards\/accuracy_reward\/mean$/.test(name));
  if (accuracy) { const [first, last] = ends(run.series[accuracy]); tiles.push(tile("Accuracy reward", figure(last), `from ${figure(first)} at the start`)); }
  if (step) tiles.push(tile("Steps", count(step), most ? (step >= most ? "all done" : `of ${count(most)}${left ? `, ${duration(left)} left` : ""}`) : null));
  if (run.series.num_tokens) tiles.push(tile("Tokens trained", count(run.series.num_tokens[1].at(-1)), run.series["tokens per second"] ? `${count(run.series["tokens per second"][1].at(-1))} per second at the end` : null));
  if (run.series.step_time) tiles.push(tile("Seconds per step", figure(mean(run.series.step_time[1])), "mean"));
  if (run.series.grad_norm) tiles.push(tile("Gradient spikes", count(run.spikes.length), `of ${plural(run.series.grad_norm[1].length, "logged step")}`));
  return tiles;
}

function evaluationTiles(evaluation) {
  const tiles = evaluation.metrics.filter((metric) => metric.metric === "accuracy").slice(0, 4)
    .map((metric) => tile("Accuracy", figure(metric.value), metric.low === null ? metric.task : `${figure(metric.low)} to ${figure(metric.high)}, ${metric.task}`));
  const items = sum(Object.values(evaluation.statuses));
  if (items) tiles.push(tile("Items", count(items), Object.entries(evaluation.statuses).map(([status, n]) => `${count(n)} ${status.replaceAll("_", " ")}`).join(", ")));
  if (isNumber(evaluation.counts.generated_tokens)) {
    const { generated_tokens: tokens, seconds } = evaluation.counts;
    tiles.push(tile("Tokens generated", count(tokens), seconds ? `${count(tokens / seconds)} per second` : null));
  }
  return tiles;
}

// --- Live ---------------------------------------------------------------------------------------------------------

function showProgress() {
  const place = byId("live");
  place.hidden = false;
  place.replaceChildren(...state.data.runs.filter((run) => run.progress.max_steps).map(({ name, progress }) => {
    const share = clamp(progress.step / progress.max_steps, 0, 1);
    const text = progress.ended || share === 1 ? "training has ended" : progress.seconds_left === null ? "training" : `${duration(progress.seconds_left)} left`;
    return el("div", {}, `${state.data.runs.length > 1 ? `${name}: ` : ""}step ${count(progress.step)} of ${count(progress.max_steps)}, ${text}`,
      el("div", { class: "bar" }, el("i", { style: { width: `${100 * share}%` } })));
  }));
  if (!place.childElementCount) place.append(el("span", { class: "muted" }, "waiting for metrics"));
}

async function poll() {
  try {
    const answer = await fetch(`/news?have=${encodeURIComponent(state.version ?? "")}`);
    if (answer.status === 200) {
      const news = await answer.json();
      const scroll = scrollY, open = [...document.querySelectorAll("details[open][id]")].map(({ id }) => id);
      draw(news.data, news.pictures);
      showProgress();
      for (const id of open) if (byId(id)) byId(id).open = true;
      scrollTo(0, scroll);
    }
    if (document.body.dataset.connected === "no") showProgress();
    document.body.dataset.connected = "yes";
  } catch {
    document.body.dataset.connected = "no";
    byId("live").replaceChildren(el("span", { class: "status" }, "the server does not answer: start scripts/watch.py again"));
  }
  setTimeout(poll, POLL);
}

// --- Start --------------------------------------------------------------------------------------------------------

function nextTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  for (const chart of charts) chart.redraw();
}

function start() {
  draw(JSON.parse(byId("data").textContent), byId("pictures").textContent);
  byId("theme").addEventListener("click", nextTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const chart of charts) chart.redraw(); });
  document.addEventListener("pointerover", showTip);
  document.addEventListener("focusin", showTip);
  document.addEventListener("keydown", detailKeys);
  document.addEventListener("scroll", () => { byId("tip").hidden = true; }, { passive: true, capture: true });
  byId("detail").addEventListener("click", (event) => { if (event.target === byId("detail")) byId("detail").close(); });
  let width = innerWidth, waiting = null;
  addEventListener("hashchange", followLink);
  byId("detail").addEventListener("close", () => { if (location.hash.startsWith("#record=")) history.replaceState(null, "", " "); });
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      resizeCharts();
      if (innerWidth !== width) { width = innerWidth; drawTrees(state.data.runs); }
    }, 120);
  });
  if (document.body.dataset.live === "yes") { showProgress(); poll(); }
  followLink();
  document.body.dataset.ready = "yes";
}

start();
