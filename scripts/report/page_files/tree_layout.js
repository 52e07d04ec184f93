// Layout of a rollout tree: depth to the right, one line per leaf downwards, a node as tall as its leaves together.

const GAP = 44; // pixels between columns, for the bands
const ROOT_WIDTH = 22;
const LEAF_GAP = 6;

// tree.nodes: [{parent}], parents before children. Returns boxes by node, the leaves in order, and the size.
function layoutTree(tree, width) {
  const nodes = tree.nodes;
  const children = nodes.map(() => []), roots = [];
  nodes.forEach((node, i) => (node.parent < 0 ? roots : children[node.parent]).push(i));
  const depth = nodes.map(() => 0), leaves = nodes.map((node, i) => (children[i].length ? 0 : 1));
  nodes.forEach((node, i) => { if (node.parent >= 0) depth[i] = depth[node.parent] + 1; });
  for (let i = nodes.length - 1; i >= 0; i -= 1) if (nodes[i].parent >= 0) leaves[nodes[i].parent] += leaves[i];
  const columns = Math.max(...depth) + 1, total = sum(roots.map((i) => leaves[i]));
  const line = total <= 40 ? 46 : total <= 100 ? 34 : 26;
  const column = clamp((width - ROOT_WIDTH - GAP * columns) / columns, columns > 2 ? 150 : 170, 460);
  const boxes = nodes.map(() => null), order = [];
  const waiting = [...roots].reverse();
  let y = 0; // depth first without recursion: a chain of agent steps may be deep
  while (waiting.length) {
    const i = waiting.pop();
    boxes[i] = { x: ROOT_WIDTH + GAP + depth[i] * (column + GAP), y, width: column, height: leaves[i] * line - LEAF_GAP, leaves: leaves[i], depth: depth[i] };
    if (children[i].length) waiting.push(...[...children[i]].reverse());
    else { order.push(i); y += line; }
  }
  return { boxes, children, roots, order, leaves, line, column, columns, total, width: ROOT_WIDTH + columns * (column + GAP), height: total * line - LEAF_GAP };
}

// The forks that entropy decided: nodes with at least two children, and the entropy of the token at which they forked.
// Where a thought closes or a turn ends, the fork was planned, and the entropy of the next token says nothing about it.
function forksOf(tree, layout) {
  if (tree.forked_by !== "entropy") return [];
  return layout.children.map((children, parent) => {
    const first = children.map((i) => tree.nodes[i]).find((node) => node.sampled && isNumber(node.entropies?.[0]));
    return { parent, forks: children.length > 1, entropy: first ? first.entropies[0] : null };
  }).filter((fork) => fork.forks && fork.entropy !== null);
}
