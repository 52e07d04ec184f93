// Links to one tree or one record: #tree=PROMPT&step=STEP&run=RUN (and &node=NODE), #record=ID&evaluation=NAME.

const linkTo = (target) => `#${new URLSearchParams(target)}`;

// A button that copies the link to what `target()` names, and puts it into the address bar.
function linkButton(target) {
  const button = el("button", { class: "quiet", type: "button", onclick: async () => {
    history.replaceState(null, "", linkTo(target()));
    const copied = await navigator.clipboard.writeText(location.href).then(() => true, () => false);
    button.textContent = copied ? "Link copied" : "Link is in the address bar";
    setTimeout(() => { button.textContent = "Copy link"; }, 2000);
  } }, "Copy link");
  return button;
}

// Opens what the address names; one sentence where the page does not have it.
function followLink() {
  const asked = new URLSearchParams(location.hash.slice(1)), lost = byId("lost");
  lost.hidden = true;
  if (asked.has("tree") ? openTree(asked) : asked.has("record") ? openRecord(asked) : true) return;
  const [[what, name], ...rest] = asked;
  lost.textContent = `This report has no ${what} \u201c${name}\u201d${rest.map(([key, value]) => `, ${key} ${value}`).join("")}: the link belongs to another report, or to an earlier state of it.`;
  lost.hidden = false;
  lost.scrollIntoView({ block: "nearest" });
}

function openTree(asked) {
  const has = (tree) => tree.prompt === asked.get("tree") && (!asked.has("step") || tree.step === Number(asked.get("step")));
  const run = state.data.runs.find(({ name, trees }) => (!asked.has("run") || name === asked.get("run")) && trees.some(has));
  if (!run) return false;
  const tree = run.trees.findLast(has), node = Number(asked.get("node"));
  const prompt = run.trees.filter(({ step }) => step === tree.step).indexOf(tree);
  Object.assign(viewer, { run: run.name, step: tree.step, prompt, node: asked.has("node") && node in tree.nodes ? node : null });
  drawTrees(state.data.runs);
  byId("trees").scrollIntoView();
  if (viewer.node !== null) byId("node-detail").scrollIntoView({ block: "nearest" });
  return true;
}

function openRecord(asked) {
  const has = (item) => item.id === asked.get("record");
  const holders = state.data.evaluations.filter(({ name, items }) => (!asked.has("evaluation") || name === asked.get("evaluation")) && items.some(has));
  if (!holders.length) return false;
  const { name, items } = holders.at(-1);
  openDetail(items.find(has), items, name);
  return true;
}
