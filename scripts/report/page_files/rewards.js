// Rewards of a tree's leaves, in columns at its right that stay in view while a wide tree scrolls.

const REWARD_GAP = 12;
const NARROW = 520; // pixels for the tree and its rewards; with fewer, only the sum and the advantage have columns

const functionsOf = (rows) => [...new Set(rows.flatMap((row) => Object.keys(row.rewards)))];
const rewardLabel = (name) => name.replace(/_reward$/, "").replaceAll("_", " ");

// Functions that gave 0 to each of these rows: named in one sentence, without columns.
const zeroFunctions = (rows) => functionsOf(rows).filter((name) => rows.every((row) => row.rewards[name] === 0));

function rewardColumns(rows, room) {
  const zero = zeroFunctions(rows), names = room < NARROW ? [] : functionsOf(rows).filter((name) => !zero.includes(name));
  const largest = (name) => Math.max(1, ...rows.map((row) => Math.abs(row.rewards[name] ?? 0)));
  const width = room < NARROW ? 50 : 62;
  const columns = names.map((name) => {
    const most = largest(name);
    return { label: rewardLabel(name), name, of: (row) => row.rewards[name], share: (x) => clamp(x / most, 0, 1) };
  });
  columns.push({ label: "reward", name: "reward", of: (row) => row.reward }, { label: "adv.", name: "advantage", of: (row) => row.advantage, signed: true });
  return columns.map((column, c) => ({ ...column, width: width - 10, left: REWARD_GAP + c * width }));
}

const rewardsWidth = (columns) => columns.at(-1).left + columns.at(-1).width + 14;

// One line per leaf, which opens it: `places` are [row, middle in pixels].
function rewardPanel(columns, places, select) {
  const at = (column, y) => ({ left: `${column.left}px`, top: `${y}px`, width: `${column.width}px` });
  return el("div", { class: "rewards pinned", style: { width: `${rewardsWidth(columns)}px` } },
    columns.map((column) => tipped(el("div", { class: "reward-head", style: at(column, 0) }, column.label), column.name)),
    places.map(([row, y]) => el("div", { class: "reward-row", onclick: () => select(row.leaf) },
      columns.map((column) => rewardCell(column, column.of(row), at(column, y - 10))))));
}

function rewardCell(column, value, style) {
  return el("div", { class: `reward-cell${column.signed ? " signed" : ""}`, "data-column": column.name, style },
    column.signed ? signed(value) : fixed(value),
    column.share && isNumber(value) ? el("i", { style: { "--share": `${100 * column.share(value)}%` } }) : null);
}

// What the columns leave out, in words.
function rewardNotes(rows, room) {
  const zero = zeroFunctions(rows), hidden = room < NARROW && functionsOf(rows).length > zero.length;
  return [
    zero.length ? `0 for every leaf: ${zero.map(rewardLabel).join(", ")}` : null,
    hidden ? "tap a reward for those by function" : null,
  ].filter(Boolean);
}
