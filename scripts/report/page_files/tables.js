// Tables that can be sorted by any column: click a heading for one order, again for the other.

// columns: [{label, of: row -> value to sort by, show: row -> node or text, number: bool}]; rows are not modified.
function sortableTable(columns, rows, options = {}) {
  const order = { column: null, down: false };
  const body = el("tbody");
  const heads = columns.map((column, c) => el("th", { scope: "col", class: column.number ? "number" : "", "aria-sort": "none" },
    el("button", { type: "button", onclick: () => sortBy(c) }, column.label)));
  let limit = options.page || Infinity;
  const more = el("button", { class: "quiet", type: "button", onclick: () => { limit += options.page; show(); } }, "Show more rows");
  const moreRow = el("div", { class: "more-row", hidden: true }, more);

  function sortBy(c) {
    order.down = order.column === c ? !order.down : Boolean(columns[c].number);
    order.column = c;
    heads.forEach((head, i) => head.setAttribute("aria-sort", i !== c ? "none" : order.down ? "descending" : "ascending"));
    show();
  }

  function show() {
    const sorted = order.column === null ? rows : ordered(rows, columns[order.column].of, order.down);
    body.replaceChildren(...sorted.slice(0, limit).map((row) => {
      const line = el("tr", options.open ? { class: "open-item", onclick: () => options.open(row, sorted) } : {},
        columns.map((column) => el("td", { class: [column.number ? "number" : "", column.long ? "long" : ""].join(" ").trim() }, column.show ? column.show(row) : text(column.of(row)))));
      return line;
    }));
    moreRow.hidden = sorted.length <= limit;
  }

  const text = (value) => (value === null || value === undefined ? "\u2013" : isNumber(value) ? figure(value) : String(value));
  show();
  return el("div", {}, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body)), moreRow);
}

// A sorted copy; rows without a value come last in both orders.
function ordered(rows, of, down) {
  const known = rows.map((row, i) => [of(row), i, row]);
  const empty = (value) => value === null || value === undefined || value === "";
  known.sort(([a, i], [b, j]) => {
    if (empty(a) || empty(b)) return empty(a) - empty(b) || i - j;
    const difference = isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return (down ? -difference : difference) || i - j;
  });
  return known.map(([, , row]) => row);
}

// A name that may break after its underscores.
const breakable = (name) => el("span", {}, name.split(/(?<=_)/).flatMap((part) => [part, el("wbr")]));

const MAIN_METRICS = ["accuracy", "format"]; // shown even at 0

function drawMetrics(evaluations) {
  const section = byId("metrics");
  section.replaceChildren();
  const shown = evaluations.filter((evaluation) => evaluation.metrics.length);
  if (!shown.length) return;
  const rows = new Map();
  for (const evaluation of shown) {
    for (const { task, metric, value, low, high } of evaluation.metrics) {
      const key = JSON.stringify([task, metric]);
      if (!rows.has(key)) rows.set(key, { task, metric, values: {} });
      rows.get(key).values[evaluation.name] = { value, low, high };
    }
  }
  const values = (row) => Object.values(row.values).map(({ value }) => value);
  const isZero = (row) => !MAIN_METRICS.includes(row.metric) && values(row).every((value) => value === 0);
  const zero = [...rows.values()].filter(isZero), kept = [...rows.values()].filter((row) => !isZero(row));
  const withIntervals = shown.some((evaluation) => evaluation.metrics.some((metric) => metric.low !== null));
  const tasks = new Set([...rows.values()].map((row) => row.task)), names = shortNames(shown.map(({ name }) => name));
  const columns = [
    ...(tasks.size > 1 ? [{ label: "Task", of: (row) => row.task }] : []),
    { label: "Metric", of: (row) => row.metric, show: (row) => breakable(row.metric) },
    ...shown.map(({ name }, i) => ({ label: shown.length > 1 ? names[i] : "Value", number: true, of: (row) => row.values[name]?.value, show: (row) => metricCell(row, name) })),
  ];
  if (shown.length === 2) {
    const [first, second] = shown.map(({ name }) => (row) => row.values[name]?.value);
    const change = (row) => (isNumber(first(row)) && isNumber(second(row)) ? second(row) - first(row) : null);
    columns.push({ label: "Change", number: true, of: change, show: (row) => (isNumber(change(row)) ? (change(row) > 0 ? "+" : "") + figure(change(row)) : "\u2013") });
  }
  const note = [tasks.size > 1 ? "" : [...tasks][0], withIntervals ? "with 95 % intervals" : ""].filter(Boolean).join(", ");
  section.append(sectionHead("metrics", "Metrics", note),
    el("div", { class: "card" }, sortableTable(columns, kept)));
  if (zero.length) section.append(folded("zero-values", `Metrics that are 0 (${zero.length})`, zero.map((row) => `${row.task}: ${row.metric}`)));
}

function metricCell(row, name) {
  const found = row.values[name];
  if (!found) return "\u2013";
  if (found.low === null) return figure(found.value);
  const all = Object.values(row.values).flatMap(({ value, low, high }) => [value, low, high]).filter(isNumber);
  const low = Math.min(...all), room = Math.max(...all) - low || 1;
  const x = (value) => 3 + (94 * (value - low)) / room;
  return el("span", {}, figure(found.value),
    el("span", { class: "interval" }, `${figure(found.low)} to ${figure(found.high)}`),
    svg("svg", { class: "whisker", viewBox: "0 0 100 10", "aria-hidden": "true" },
      svg("line", { x1: x(found.low), x2: x(found.high), y1: 5, y2: 5, stroke: "currentColor", "stroke-width": 2 }),
      svg("circle", { cx: x(found.value), cy: 5, r: 3.2, fill: "currentColor" })));
}

function drawSettings(data) {
  const section = byId("settings");
  section.replaceChildren();
  const holders = [...data.runs, ...data.evaluations].filter((source) => source.settings.length);
  if (!holders.length) return;
  section.append(sectionHead("settings", "Settings"));
  for (const source of holders) {
    section.append(el("details", { class: "more" }, el("summary", {}, source.name),
      el("div", { class: "card" }, sortableTable(
        [{ label: "Setting", of: (row) => row[0] }, { label: "Value", long: true, of: (row) => row[1] }], source.settings))));
  }
}
