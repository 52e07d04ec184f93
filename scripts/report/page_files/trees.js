// The tree viewer: choose a step and a prompt, inspect the sampled tree, open a node to see its tokens.

const viewer = { run: null, step: null, prompt: null, node: null };

function drawTrees(runs) {
  const section = byId("trees");
  section.replaceChildren();
  const shown = runs.filter((run) => run.trees.length);
  if (!shown.length) return;
  if (!shown.some((run) => run.name === viewer.run)) viewer.run = shown[0].name;
  const controls = el("div", { class: "card tree-controls" }), prompts = el("div", { class: "prompts", role: "group", "aria-label": "Prompts" });
  const forest = el("div", { class: "forest" });
  const again = () => showStep(shown, controls, prompts, forest, again);
  section.append(sectionHead("trees", "Rollout trees", "as they were sampled"), controls, prompts, forest);
  again();
}

function showStep(shown, controls, prompts, forest, again) {
  const run = shown.find(({ name }) => name === viewer.run);
  const steps = [...new Set(run.trees.map((tree) => tree.step))];
  if (!steps.includes(viewer.step)) { viewer.step = steps.at(-1); viewer.prompt = 0; }
  const trees = run.trees.filter((tree) => tree.step === viewer.step);
  viewer.prompt = clamp(viewer.prompt || 0, 0, trees.length - 1);
  showControls(controls, shown, steps, again);
  prompts.replaceChildren(...trees.map((tree, i) => promptButton(tree, i, () => { viewer.prompt = i; viewer.node = null; again(); })));
  prompts.hidden = trees.length < 2;
  showTree(forest, trees[viewer.prompt]);
}

function showControls(controls, shown, steps, again) {
  const at = steps.indexOf(viewer.step);
  const go = (to) => { viewer.step = steps[clamp(to, 0, steps.length - 1)]; viewer.node = null; again(); };
  const old = controls.querySelector("input[type=range]");
  if (old && Number(old.max) === steps.length - 1 && controls.dataset.run === viewer.run) {
    old.value = at; // the slider is kept, so that it can be dragged further
    controls.querySelector("output").textContent = `step ${count(viewer.step)}`;
    controls.querySelectorAll("button").forEach((button, i) => { button.disabled = i === 0 ? at === 0 : at === steps.length - 1; });
    return;
  }
  controls.dataset.run = viewer.run;
  const slider = el("input", { type: "range", min: 0, max: steps.length - 1, step: 1, value: at, "aria-label": "Training step", oninput: () => go(Number(slider.value)) });
  const move = (by) => () => go(steps.indexOf(viewer.step) + by);
  controls.replaceChildren(el("div", { class: "controls" },
    shown.length > 1 ? choice("Run", shown.map(({ name }) => [name, name]), viewer.run, (name) => { viewer.run = name; viewer.step = null; viewer.node = null; again(); }) : null,
    el("div", { class: "stepper" },
      el("button", { class: "quiet", type: "button", "aria-label": "Earlier step", disabled: at === 0, onclick: move(-1) }, "\u2190"), slider,
      el("button", { class: "quiet", type: "button", "aria-label": "Later step", disabled: at === steps.length - 1, onclick: move(1) }, "\u2192"),
      el("output", {}, `step ${count(viewer.step)}`))));
}

function promptButton(tree, i, open) {
  const rewards = tree.rows.map((row) => row.reward).filter(isNumber);
  const most = Math.max(1, ...rewards.map(Math.abs));
  return el("button", { class: "prompt", type: "button", "aria-pressed": String(i === viewer.prompt), onclick: open },
    `${tree.prompt} `, el("b", { class: "number" }, figure(mean(rewards))),
    tipped(svg("svg", { class: "strip", viewBox: "0 0 120 12", "aria-hidden": "true" },
      svg("line", { x1: 4, x2: 116, y1: 6, y2: 6, stroke: "currentColor", opacity: 0.35 }),
      rewards.map((reward) => svg("circle", { cx: 4 + (112 * clamp(reward, 0, most)) / most, cy: 6, r: 3.2, fill: "currentColor", opacity: 0.55 }))),
    `rewards of ${rewards.length} rows, from 0 to ${figure(most)}`));
}

function showTree(forest, tree) {
  const said = el("div", { class: "card said-all", id: "node-detail", hidden: true });
  const growth = el("div", { class: "card growth", tabindex: "0", role: "group", "aria-label": "Tree" });
  const ask = el("div", { class: "card ask" }), right = el("div", { style: { "min-width": 0 } }, growth, said);
  const drawn = tree.picture !== null || tree.rows.some((row) => row.shapes.length);
  forest.replaceChildren(ask, right);
  const room = Math.max(300, growth.clientWidth - 16);
  const target = () => ({ tree: tree.prompt, step: tree.step, run: viewer.run, ...(viewer.node === null ? {} : { node: viewer.node }) });
  const highlight = () => {
    ask.replaceChildren(
      ...(drawn ? [el("div", { class: "stage" }, treePicture(tree, viewer.node))] : []),
      el("div", {}, el("p", { class: "question" }, tree.question || tree.prompt),
        [summaryOf(tree), ...rewardNotes(tree.rows, room)].map((note) => el("p", { class: "small muted below" }, note)),
        tree.cut ? el("p", { class: "small status below" }, `left out: ${tree.cut}`) : null,
        linkButton(target)));
  };
  const select = (i) => {
    viewer.node = viewer.node === i ? null : i;
    growth.querySelectorAll(".node").forEach((node) => node.setAttribute("aria-pressed", String(Number(node.dataset.node) === viewer.node)));
    showNode(said, tree);
    highlight();
    if (viewer.node === null) return;
    showWhole(growth, viewer.node);
    said.scrollIntoView({ block: "nearest" }); // it is below the tree, often below the window
  };
  growth.append(grownTree(tree, room, select));
  if (viewer.node !== null && viewer.node >= tree.nodes.length) viewer.node = null;
  if (viewer.node !== null) showWhole(growth, viewer.node);
  showNode(said, tree);
  highlight();
}

// Scrolls a tree sideways until a node stands left of the rewards.
function showWhole(growth, i) {
  const node = growth.querySelector(`[data-node="${i}"]`), room = growth.clientWidth - growth.querySelector(".rewards").offsetWidth;
  growth.scrollLeft = clamp(growth.scrollLeft, node.offsetLeft + node.offsetWidth + 20 - room, node.offsetLeft);
}

function summaryOf(tree) {
  const tokens = sum(tree.nodes.map((node) => node.count || 0));
  return [tree.task, plural(tree.nodes.length, "node"), plural(new Set(tree.rows.map((row) => row.leaf)).size, "leaf").replace("leafs", "leaves"), plural(tokens, "token")].filter(Boolean).join(", ");
}

const signOf = (x) => (isNumber(x) && x > 0 ? "positive" : isNumber(x) && x < 0 ? "negative" : "");

// The prompt's picture with the answers of all leaves; if a node is open, those below it are highlighted.
function treePicture(tree, opened = null) {
  const under = (leaf) => {
    for (let i = leaf; i >= 0; i = tree.nodes[i].parent) if (i === opened) return true;
    return opened === null;
  };
  const rows = [...tree.rows].sort((a, b) => (a.advantage ?? 0) - (b.advantage ?? 0));
  const layers = rows.map((row) => [`leaf ${signOf(row.advantage)}`, row.shapes, under(row.leaf)]);
  const picture = drawnPicture({ picture: tree.picture, size: tree.size, question: tree.question }, layers);
  picture.querySelectorAll("svg > g").forEach((group, i) => { if (!layers[i][2]) group.classList.add("faint"); });
  return picture;
}

function grownTree(tree, room, select) {
  const columns = rewardColumns(tree.rows, room), side = rewardsWidth(columns);
  const layout = layoutTree(tree, room - side);
  const most = Math.max(1e-9, ...tree.nodes.map((node) => Math.abs(node.advantage ?? 0)));
  const top = 22;
  const canvas = el("div", { class: "canvas", style: { width: `${layout.width + side}px`, height: `${layout.height + top}px` } });
  const lines = svg("svg", { width: layout.width + side, height: layout.height + top, "aria-hidden": "true" });
  canvas.append(lines, el("div", { class: "root", style: { left: 0, top: `${top}px`, width: `${ROOT_WIDTH}px`, height: `${layout.height}px` } }, "prompt"));
  drawBands(lines, tree, layout, top);
  tree.nodes.forEach((node, i) => canvas.append(nodeBox(node, i, layout.boxes[i], top, most, select, openedBefore(tree, node))));
  const rows = new Map(), places = [];
  for (const row of tree.rows) if (!rows.has(row.leaf)) rows.set(row.leaf, row);
  for (const leaf of layout.order) {
    const row = rows.get(leaf), box = layout.boxes[leaf];
    if (!row) continue;
    const y = top + box.y + box.height / 2;
    lines.append(svg("line", { class: "lead", x1: box.x + box.width + 4, x2: layout.width + REWARD_GAP - 4, y1: y, y2: y }));
    places.push([row, y]);
  }
  canvas.append(rewardPanel(columns, places, select));
  return canvas;
}

// Bands from a fork to its children, as wide as their numbers of leaves, and a mark sized by the fork's entropy.
function drawBands(lines, tree, layout, top) {
  const thick = clamp(layout.line / 5, 3, 9);
  const endOf = (i) => (i < 0 ? { x: ROOT_WIDTH, y: top + layout.height / 2 } : { x: layout.boxes[i].x + layout.boxes[i].width, y: top + layout.boxes[i].y + layout.boxes[i].height / 2 });
  const wide = (leaves) => Math.min(leaves * thick, 60);
  const from = (parent, children) => {
    const end = endOf(parent), all = sum(children.map((i) => wide(layout.leaves[i])));
    let y = end.y - all / 2;
    for (const i of children) {
      const box = layout.boxes[i], width = wide(layout.leaves[i]), y1 = y + width / 2, y2 = top + box.y + box.height / 2;
      y += width;
      lines.append(svg("path", { class: `band ${signOf(tree.nodes[i].advantage)}`, "stroke-width": width, "data-leaves": layout.leaves[i], d: `M${end.x},${y1}C${end.x + GAP * 0.55},${y1} ${box.x - GAP * 0.55},${y2} ${box.x},${y2}` }));
    }
  };
  from(-1, layout.roots);
  layout.children.forEach((children, i) => { if (children.length) from(i, children); });
  for (const fork of forksOf(tree, layout)) {
    const { x, y } = endOf(fork.parent);
    lines.append(svg("circle", { class: "fork", cx: x + 11, cy: y, r: clamp(2.5 + 2.5 * fork.entropy, 2.5, 9), "data-entropy": fork.entropy }),
      svg("text", { class: "fork-label", x: x + 5, y: y - clamp(2.5 + 2.5 * fork.entropy, 2.5, 9) - 4 }, `H ${fork.entropy.toFixed(2)}`));
  }
}

// The tag of a thought that the prompt, or the header of an agent's turn, ends with: the node continues that thought.
const openedBefore = (tree, { parent }) => (parent < 0 || (tree.opened && tree.nodes[parent].text.endsWith(tree.opened)) ? tree.opened : "");

function nodeBox(node, i, box, top, most, select, opened) {
  const classes = ["node", node.sampled ? signOf(node.advantage) : "observed", node.status === "failed" ? "failed" : ""].filter(Boolean).join(" ");
  const tint = Math.round(4 + 22 * Math.min(1, Math.abs(node.advantage ?? 0) / most));
  const room = box.height - 8 - 15;
  const seen = node.pictures?.[0], side = clamp(Math.min(box.height - 8, 0.42 * box.width), 24, 112);
  const flag = [node.status === "ok" ? "" : node.status, node.error].filter(Boolean).map((word) => `, ${word}`).join("");
  return el("button", { class: classes, type: "button", "data-node": i, "data-leaves": box.leaves, "aria-pressed": String(viewer.node === i), onclick: () => select(i),
    style: { left: `${box.x}px`, top: `${top + box.y}px`, width: `${box.width}px`, height: `${box.height}px`, "--tint": `${tint}%`, ...(seen ? { "padding-right": `${side + 10}px` } : {}) } },
    seen ? el("img", { class: "seen", src: seen, alt: "", style: { width: `${side}px`, height: `${side}px` } }) : null,
    el("span", { class: "head" }, el("span", {}, `${node.kind}, ${count(node.count)} tok${flag}`), node.sampled ? el("b", {}, signed(node.advantage)) : null),
    room > 12 ? el("span", { class: "said", style: { "-webkit-line-clamp": Math.max(1, Math.floor(room / 16)) } }, opened ? el("span", { class: "muted" }, opened) : null, node.text.slice(0, 1200)) : null);
}
