// An opened node of a tree: what is known about it, and its tokens after the text that they continue.

const MOST_TOKENS = 4000;
const HOTTEST = 2.5; // nats with the darkest shade of a token

function showNode(said, tree) {
  said.hidden = viewer.node === null;
  if (viewer.node === null) return;
  const node = tree.nodes[viewer.node];
  const before = [];
  for (let i = node.parent; i >= 0; i = tree.nodes[i].parent) before.unshift(tree.nodes[i].text);
  before.unshift(tree.opened);
  const parts = [
    el("h3", {}, `${node.kind} ${viewer.node}`),
    el("div", { class: "facts-row" }, factsOf(node, tree).map(([name, value]) => el("span", {}, `${name} `, el("b", {}, value)))),
    node.pictures ? el("div", { class: "seen-all" }, node.pictures.map((src, i) => el("img", { src, alt: `picture ${i + 1} of the observation` }))) : null,
    el("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Text of the node and of what comes before it" },
      before.join("") ? el("span", { class: "before" }, before.join("")) : null, tokenSpans(node)),
  ];
  said.replaceChildren(...parts.filter(Boolean)); // the browser's own method would print a null
}

// [name, value] pairs; rewards of 0 share one.
function factsOf(node, tree) {
  const rows = tree.rows.filter(({ leaf }) => leaf === viewer.node);
  const rewards = Object.entries(rows[0]?.rewards ?? {}), zero = rewards.filter(([, value]) => value === 0).map(([name]) => name);
  return [
    ["status", node.status], node.error ? ["error", node.error] : null, ["tokens", count(node.count)],
    ["advantage", signed(node.advantage)], ["mean reward", figure(node.reward)],
    ...(node.sampled ? [["mean log-prob.", fixed(mean(node.logprobs || []))], ["mean entropy", fixed(mean(node.entropies || []))]] : []),
    ...rewards.filter(([, value]) => value !== 0).map(([name, value]) => [rewardLabel(name), figure(value)]),
    zero.length ? [zero.map(rewardLabel).join(", "), "0"] : null,
    rows.length > 1 ? ["rows", String(rows.length)] : null,
  ].filter(Boolean);
}

function tokenSpans(node) {
  if (!node.tokens || node.tokens.length > MOST_TOKENS) return el("span", {}, node.text);
  return node.tokens.map((token, i) => {
    const entropy = node.entropies?.[i], logprob = node.logprobs?.[i];
    const heat = isNumber(entropy) ? Math.round(38 * clamp(entropy / HOTTEST, 0, 1)) : 0;
    const facts = [JSON.stringify(String(token)), `token ${i + 1}`, isNumber(entropy) ? `entropy ${entropy.toFixed(2)} nats` : null, isNumber(logprob) ? `probability ${(100 * Math.exp(logprob)).toFixed(1)} %` : null];
    return tipped(el("span", { class: "t", style: { "--heat": `${heat}%` } }, String(token)), facts.filter(Boolean).join("\n"));
  });
}
