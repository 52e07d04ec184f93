// Two evaluations, or the trees of two runs, side by side on the records that both have.

const PAIRS_AT_ONCE = 8;
const PAIR_ORDERS = {
  change: ["largest change", (pair) => Math.abs(pair.change), true],
  better: ["right better first", (pair) => pair.change, true],
  worse: ["right worse first", (pair) => pair.change, false],
  data: ["as in the data", null],
};
const pairing = { left: null, right: null, order: "change", query: "", made: 0 };

// Everything that can be a side: its kind, its name, and its records by id.
function sidesOf(data) {
  const evaluations = data.evaluations.filter(({ items }) => items.length).map(({ name, items }) => ({
    kind: "evaluation", label: name, records: () => new Map(items.map((item) => [item.id, evaluated(item, items, name)])) }));
  const runs = data.runs.filter(({ trees }) => trees.length).map(({ name, trees }) => ({
    kind: "trees", label: `${name} (trees)`, records: () => new Map(trees.map((tree) => [tree.prompt, grown(tree, name)])) }));
  return [...evaluations, ...runs]; // of several trees of a prompt the last one stays
}

const evaluated = (item, items, name) => ({
  id: item.id, task: item.task, question: item.question, truth: item.truth, score: item.accuracy,
  facts: [["score", figure(item.accuracy)], ["format", figure(item.format)], ["status", item.status.replaceAll("_", " ")]],
  show: () => (isDrawn(item) ? el("div", { class: "stage" }, drawnPicture(item)) : null),
  text: hasShapes(item) ? [] : ["prediction", item.prediction || "none"], item,
  open: () => openDetail(item, items, name),
});

const grown = (tree, name) => {
  const leaves = ordered(tree.rows, (row) => row.reward, true), best = leaves[0];
  const zero = zeroFunctions(tree.rows), named = functionsOf(tree.rows).filter((one) => !zero.includes(one));
  return {
    id: tree.prompt, task: tree.task, question: tree.question, truth: "", score: mean(tree.rows.map((row) => row.reward)),
    facts: [["step", count(tree.step)], ["mean reward", figure(mean(tree.rows.map((row) => row.reward)))],
      ...named.map((one) => [rewardLabel(one), figure(mean(tree.rows.map((row) => row.rewards[one])))]),
      zero.length ? [zero.map(rewardLabel).join(", "), "0"] : null].filter(Boolean),
    show: () => (tree.picture === null ? null : el("div", { class: "stage" }, treePicture(tree))),
    text: best ? ["best leaf", tree.nodes[best.leaf].text] : [],
    open: () => { location.hash = linkTo({ tree: tree.prompt, step: tree.step, run: name }); },
  };
};

function drawCompare(data) {
  const section = byId("compare"), typing = document.activeElement?.type === "search" && section.contains(document.activeElement);
  section.replaceChildren();
  const sides = sidesOf(data), partners = (side) => sides.filter((other) => other !== side && other.kind === side.kind);
  const left = sides.filter((side) => partners(side).length);
  if (!left.length) return;
  choosePair(left, partners);
  const [a, b] = [pairing.left, pairing.right].map((label) => sides.find((side) => side.label === label));
  const { pairs, notes } = pairsOf(a, b);
  const again = () => drawCompare(data), results = el("div", { class: "pairs" });
  const names = (found) => found.map(({ label }) => [label, label]);
  const search = el("input", { type: "search", placeholder: "question, answer or id", value: pairing.query,
    oninput: () => { pairing.query = search.value; showPairs(results, pairs, [a, b]); } });
  section.append(sectionHead("compare", "Side by side", summaryOfPairs(pairs)),
    el("div", { class: "card filters" }, el("div", { class: "controls" },
      choice("Left", names(left), a.label, (label) => { pairing.left = label; again(); }),
      choice("Right", names(partners(a)), b.label, (label) => { pairing.right = label; again(); }),
      choice("Order of records", Object.entries(PAIR_ORDERS).map(([key, [name]]) => [key, name]), pairing.order, (key) => { pairing.order = key; again(); }),
      el("label", {}, "Text", search)),
    notes.map((note) => el("p", { class: "small muted below" }, note))),
    el("div", { class: "legend" }, legendOf(pairs.flatMap(({ one }) => one.item ?? []))), results);
  showPairs(results, pairs, [a, b], pairing.made); // a redrawn page keeps its length
  if (typing) search.focus();
}

// The sides named before, else the last one and the last one before it of another folder.
function choosePair(sides, partners) {
  const kept = sides.find(({ label }) => label === pairing.left);
  if (kept && partners(kept).some(({ label }) => label === pairing.right)) return;
  const folder = (side) => side.label.split("/")[0];
  const right = kept ? partners(kept).at(-1) : sides.filter(({ kind }) => kind === sides[0].kind).at(-1);
  const left = kept ?? partners(right).findLast((side) => folder(side) !== folder(right)) ?? partners(right).at(-1);
  Object.assign(pairing, { left: left.label, right: right.label });
}

function pairsOf(a, b) {
  const left = a.records(), right = b.records();
  const shared = [...left.values()].filter(({ id }) => right.has(id)).map((one) => ({ one, other: right.get(one.id) }));
  const pairs = shared.filter(({ one, other }) => one.question === other.question && one.truth === other.truth && one.task === other.task)
    .map((pair) => ({ ...pair, change: isNumber(pair.one.score) && isNumber(pair.other.score) ? pair.other.score - pair.one.score : null }));
  const alone = left.size + right.size - 2 * shared.length, differ = shared.length - pairs.length;
  return { pairs, notes: [
    alone ? `${plural(left.size - shared.length, "record")} only on the left, ${count(right.size - shared.length)} only on the right` : null,
    differ ? `${plural(differ, "record")} left out: the same id, but another task, question or true answer` : null,
  ].filter(Boolean) };
}

function summaryOfPairs(pairs) {
  const known = pairs.filter(({ change }) => change !== null), changed = known.map(({ change }) => change);
  if (!known.length) return plural(pairs.length, "record");
  const [left, right] = [mean(known.map(({ one }) => one.score)), mean(known.map(({ other }) => other.score))];
  return `${plural(pairs.length, "record")}, mean ${figure(left)} and ${figure(right)}: right better on ${count(changed.filter((x) => x > 0).length)}, worse on ${count(changed.filter((x) => x < 0).length)}, equal on ${count(changed.filter((x) => x === 0).length)}`;
}

function showPairs(results, pairs, sides, most = PAIRS_AT_ONCE) {
  const query = pairing.query.toLowerCase(), [, of, down] = PAIR_ORDERS[pairing.order];
  const found = pairs.filter(({ one }) => [one.id, one.question, one.truth].some((text) => text.toLowerCase().includes(query)));
  const kept = of ? ordered(found, (pair) => (pair.change === null ? null : of(pair)), down) : found;
  const more = el("button", { class: "quiet", type: "button", onclick: () => add(PAIRS_AT_ONCE) }, "Show more");
  const grid = el("div", { class: "pair-list" }), row = el("div", { class: "more-row" }, more);
  const add = (cards) => {
    const made = grid.childElementCount;
    grid.append(...kept.slice(made, made + cards).map((pair) => pairCard(pair, sides)));
    pairing.made = grid.childElementCount;
    row.hidden = pairing.made >= kept.length;
  };
  results.replaceChildren(kept.length ? grid : el("p", { class: "muted" }, "No record fits."), row);
  add(Math.max(most, PAIRS_AT_ONCE));
}

function pairCard({ one, other, change }, sides) {
  const names = shortNames(sides.map(({ label }) => label));
  return el("article", { class: "card record-pair" },
    el("div", { class: "meta" }, el("span", {}, `${one.id}, ${one.task}`), el("b", { class: `change ${signOf(change)}` }, signed(change))),
    one.question ? el("p", { class: "question" }, one.question) : null,
    one.truth && one.text.length ? el("p", { class: "small" }, el("span", { class: "muted" }, "true answer "), one.truth) : null,
    el("div", { class: "sides" }, [one, other].map((record, i) => el("div", { class: "side" },
      el("h4", {}, names[i]), record.show(),
      record.text.length ? el("p", { class: "small clamp" }, el("span", { class: "muted" }, `${record.text[0]} `), record.text[1]) : null,
      el("div", { class: "facts-row" }, record.facts.map(([name, value]) => el("span", {}, `${name} `, el("b", {}, value))),
        el("button", { class: "quiet", type: "button", onclick: record.open }, "Open"))))));
}
