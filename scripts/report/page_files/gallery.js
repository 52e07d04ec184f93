// Predictions on their pictures: filters, cards that are created as they scroll into view, and a table of the same.

const CARDS_AT_ONCE = 24;
const ROWS_AT_ONCE = 100;
const ORDERS = [["data", "as in the data"], ["worst", "lowest score first"], ["best", "highest score first"]];

const filters = { source: null, task: "", status: "", low: "", high: "", query: "", order: "data", view: "cards" };
let cardObserver = null, cardsMade = 0;

function drawGallery(evaluations) {
  const section = byId("gallery");
  section.replaceChildren();
  const shown = evaluations.filter((evaluation) => evaluation.items.length);
  if (!shown.length) return;
  if (!shown.some((evaluation) => evaluation.name === filters.source)) filters.source = shown.at(-1).name;
  const results = el("div", { id: "results" });
  const found = el("p", { id: "found", role: "status" });
  const again = (most) => { showFilters(bar, shown, again); showResults(shown, results, found, most); };
  const bar = el("div", { class: "card filters" });
  section.append(sectionHead("gallery", "Predictions", null, found), bar,
    el("div", { class: "legend", id: "legend" }), results);
  again(cardsMade); // a redrawn page keeps its length
}

function showFilters(bar, shown, again) {
  const items = shown.find((evaluation) => evaluation.name === filters.source).items;
  const distinct = (key) => [...new Set(items.map((item) => item[key]))].sort();
  const set = (name) => (value) => { filters[name] = value; again(); };
  const tasks = distinct("task"), statuses = distinct("status");
  if (!tasks.includes(filters.task)) filters.task = "";
  if (!statuses.includes(filters.status)) filters.status = "";
  const typed = (name, properties) => {
    const input = el("input", { ...properties, value: filters[name], oninput: () => { filters[name] = input.value; showResults(shown, byId("results"), byId("found")); } });
    return input;
  };
  if (bar.contains(document.activeElement) && document.activeElement.tagName === "INPUT") return;
  const focused = [...bar.querySelectorAll("select")].indexOf(document.activeElement);
  bar.replaceChildren(el("div", { class: "controls" },
    shown.length > 1 ? choice("Evaluation", shown.map(({ name }) => [name, name]), filters.source, set("source")) : null,
    choice("Task", [["", "all"], ...tasks.map((task) => [task, task])], filters.task, set("task")),
    choice("Status", [["", "all"], ...statuses.map((status) => [status, status.replaceAll("_", " ")])], filters.status, set("status")),
    el("label", {}, "Score from, to", el("span", { class: "pair" },
      typed("low", { type: "number", step: "any", "aria-label": "Lowest score" }), typed("high", { type: "number", step: "any", "aria-label": "Highest score" }))),
    el("label", {}, "Text", typed("query", { type: "search", placeholder: "question, answer or id" })),
    choice("Order", ORDERS, filters.order, set("order")),
    choice("View", [["cards", "cards"], ["table", "table"]], filters.view, set("view"))));
  if (focused >= 0) bar.querySelectorAll("select")[focused]?.focus();
}

function filteredItems(items) {
  const low = filters.low === "" ? null : Number(filters.low), high = filters.high === "" ? null : Number(filters.high);
  const query = filters.query.toLowerCase();
  const kept = items.filter((item) => (!filters.task || item.task === filters.task)
    && (!filters.status || item.status === filters.status)
    && (low === null || (item.accuracy !== null && item.accuracy >= low))
    && (high === null || (item.accuracy !== null && item.accuracy <= high))
    && (!query || [item.id, item.question, item.completion, item.truth].some((text) => text.toLowerCase().includes(query))));
  if (filters.order === "data") return kept;
  return ordered(kept, (item) => item.accuracy, filters.order === "best");
}

function showResults(shown, results, found, most = CARDS_AT_ONCE) {
  const items = shown.find((evaluation) => evaluation.name === filters.source).items;
  const kept = filteredItems(items);
  const score = mean(kept.map((item) => item.accuracy));
  found.textContent = `${count(kept.length)} of ${plural(items.length, "item")}${score === null ? "" : `, mean score ${figure(score)}`}`;
  byId("legend").replaceChildren(...legendOf(kept));
  if (cardObserver) cardObserver.disconnect();
  if (filters.view === "table") {
    results.replaceChildren(el("div", { class: "card" }, itemTable(kept)));
    return;
  }
  const grid = el("div", { class: "cards" }), sentinel = el("div", { class: "more-row" });
  const add = (cards) => {
    grid.append(...kept.slice(cardsMade, cardsMade + cards).map((item) => card(item, kept)));
    cardsMade = Math.min(cardsMade + cards, kept.length);
    sentinel.hidden = cardsMade >= kept.length;
    cardObserver.unobserve(sentinel); // it reports only once; observed again, it reports if it is still in view
    cardObserver.observe(sentinel);
  };
  const more = () => add(CARDS_AT_ONCE);
  sentinel.append(el("button", { class: "quiet", type: "button", onclick: more }, "Show more"));
  results.replaceChildren(kept.length ? grid : el("p", { class: "muted" }, "No item fits these filters."), sentinel);
  cardObserver = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) more(); }, { rootMargin: "500px" });
  cardsMade = 0;
  add(Math.max(most, CARDS_AT_ONCE));
}

// What the drawn shapes mean; nothing for items without any.
function legendOf(items) {
  if (!items.some(hasShapes)) return [];
  const isPath = ({ kind }) => kind === "path";
  const path = items.some((item) => item.true.some(isPath) || item.predicted.some(isPath)) ? "; a path starts at its dot and ends at its arrow" : "";
  return [
    el("span", { class: "key" }, el("i", { class: "dashed", style: { color: "var(--truth)" } }), "true answer"),
    el("span", { class: "key" }, el("i", { style: { color: "var(--predicted)" } }), "prediction"),
    el("span", {}, `in the original picture${path}`)];
}

function itemTable(items) {
  return sortableTable([
    { label: "Id", of: (item) => item.id },
    { label: "Task", of: (item) => item.task },
    { label: "Status", of: (item) => item.status.replaceAll("_", " ") },
    { label: "Score", number: true, of: (item) => item.accuracy },
    { label: "Format", number: true, of: (item) => item.format },
    { label: "Prediction", long: true, of: (item) => item.prediction, show: (item) => el("span", { class: "clamp" }, item.prediction || "\u2013") },
    { label: "True answer", long: true, of: (item) => item.truth, show: (item) => el("span", { class: "clamp" }, item.truth || "\u2013") },
  ], items, { page: ROWS_AT_ONCE, open: (item, sorted) => openDetail(item, sorted, filters.source) });
}

function card(item, items) {
  return el("button", { class: "card item", type: "button", onclick: () => openDetail(item, items, filters.source) },
    isDrawn(item) ? el("span", { class: "stage" }, drawnPicture(item)) : null,
    el("span", { class: "body" },
      el("span", { class: isDrawn(item) ? "question" : "question long" }, item.question || item.id),
      hasShapes(item) ? null : words(item),
      el("span", { class: "meta" }, el("span", {}, item.id), statusOf(item)),
      el("span", { class: "meta" }, el("span", {}, item.task), el("span", { class: "score" }, figure(item.accuracy)))));
}

const hasShapes = (item) => item.true.length + item.predicted.length > 0;
const isDrawn = (item) => isNumber(item.picture) || hasShapes(item);

const statusOf = (item) => el("span", { class: item.status === "ok" ? "status ok" : "status" }, item.status.replaceAll("_", " "));

function words(item) {
  return el("span", { class: "words" },
    el("span", { class: "muted" }, "prediction"), el("span", { class: "clamp" }, item.prediction || "none"),
    el("span", { class: "muted" }, "true answer"), el("span", { class: "clamp" }, item.truth || "none"));
}

// The thumbnail with shapes in pixels of the original picture, which is the view box at any displayed size.
function drawnPicture(item, layers = [["true", item.true], ["predicted", item.predicted]]) {
  const url = pictureUrl(item.picture);
  if (!item.size) {
    return el("span", { class: "picture" }, url ? el("img", { class: "plain", src: url, alt: item.question }) : null);
  }
  const [width, height] = item.size;
  // the largest frame with the picture's aspect ratio that fits into its container
  return el("span", { class: "picture", style: { "aspect-ratio": `${width} / ${height}`, width: `min(100cqw, ${(100 * width) / height}cqh)` } },
    url ? el("img", { src: url, alt: item.question, decoding: "async" }) : el("span", { class: "empty" }, "picture not in this file"),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      layers.map(([kind, shapes]) => svg("g", { class: kind }, shapes.map((shape) => drawnShape(shape, kind, Math.max(width, height)))))));
}

function drawnShape(shape, kind, extent) {
  const at = shape.at, r = extent * 0.016;
  const group = svg("g", { "data-kind": shape.kind });
  if (shape.label) group.append(svg("title", {}, shape.label));
  const twice = (make) => group.append(make("halo"), make(`shape ${kind}`));
  if (shape.kind === "box") {
    const [x1, y1, x2, y2] = at;
    twice((name) => svg("rect", { class: name, x: Math.min(x1, x2), y: Math.min(y1, y2), width: Math.abs(x2 - x1), height: Math.abs(y2 - y1) }));
  } else if (shape.kind === "point") {
    group.append(svg("circle", { class: `mark ${kind}`, cx: at[0], cy: at[1], r: r * 1.5 }));
  } else {
    const points = [];
    for (let i = 0; i < at.length; i += 2) points.push(`${at[i]},${at[i + 1]}`);
    twice((name) => svg("polyline", { class: name, points: points.join(" ") }));
    group.append(svg("circle", { class: `mark ${kind}`, cx: at[0], cy: at[1], r }), svg("path", { class: `mark ${kind}`, d: arrow(at, r * 2.2) }));
  }
  return group;
}

// A triangle at the end of a path, in the direction of its last segment.
function arrow(at, r) {
  const [x, y] = at.slice(-2);
  let i = at.length - 4;
  while (i > 0 && at[i] === x && at[i + 1] === y) i -= 2;
  const angle = Math.atan2(y - at[i + 1], x - at[i]);
  const corner = (turn, length) => `${x + length * Math.cos(angle + turn)},${y + length * Math.sin(angle + turn)}`;
  return `M${corner(0, r * 0.7)}L${corner(2.4, r)}L${corner(-2.4, r)}Z`;
}
