"""Logged rollout trees for the page's tree viewer: thinned to a budget, with the leaves' answers to draw."""

from __future__ import annotations

import json
import re
from pathlib import Path

from report.gallery import first_picture
from report.lines import number, read_lines, size, text
from report.pictures import Pictures
from report.shapes import shapes_in
from task.parsing.answers import thought_tags

BUDGET = 24 * 2**20  # characters of all trees of a page
SPECIAL_TOKEN = re.compile(r"<\|[^|<>]{1,40}\|>")
PLACEHOLDERS = re.compile(r"(?:<\|(?:image|video)_pad\|>)+")
PICTURE = re.compile(
    r"data:image/(?:png|jpeg);base64,[A-Za-z0-9+/=]{1,65536}"
)  # as trainer/logs/tree_pictures.py makes them
MOST_PICTURES = 4  # per node
NODE_LISTS = ("tokens", "entropies", "logprobs")
MOST_NODES = 5_000


def read_trees(folder: Path) -> tuple[list[dict], list[str]]:
    """(trees in ascending steps, notes about what is missing); a resumed run's later line replaces the earlier one."""
    entries, faults = read_lines(folder / "trees.jsonl")
    notes = [f"{faults} damaged lines of trees.jsonl were left out"] if faults else []
    kept: dict[tuple, dict] = {}
    for entry in entries:
        if isinstance(entry.get("nodes"), list) and number(entry.get("step")) is not None:
            kept[entry["step"], text(entry.get("prompt_id"), 300)] = entry
        elif isinstance(entry.get("cut"), str):
            notes.append(entry["cut"])
    trees = sorted(kept.values(), key=lambda tree: tree["step"])
    thinned = _thinned(trees)
    if len(thinned) < len(trees):
        notes.append(
            f"{len(thinned)} of {len(trees)} logged trees fit on the page: others of the same steps are left out"
        )
    return thinned, notes


def _thinned(trees: list[dict]) -> list[dict]:
    """Trees within the budget: the first of every step before any second one; steps are thinned evenly if needed."""
    lengths = {id(tree): len(json.dumps(tree)) for tree in trees}
    if sum(lengths.values()) <= BUDGET:
        return trees
    by_step: dict[float, list[dict]] = {}
    for tree in trees:
        by_step.setdefault(tree["step"], []).append(tree)
    firsts = [found[0] for found in by_step.values()]
    while len(firsts) > 2 and sum(lengths[id(tree)] for tree in firsts) > BUDGET:
        firsts = firsts[:-1:2] + firsts[-1:]
    kept, room = {id(tree) for tree in firsts}, BUDGET - sum(lengths[id(tree)] for tree in firsts)
    steps = {tree["step"] for tree in firsts}
    for rank in range(1, max(map(len, by_step.values()))):
        for step, found in by_step.items():
            if step in steps and rank < len(found) and lengths[id(found[rank])] <= room:
                kept.add(id(found[rank]))
                room -= lengths[id(found[rank])]
    return [tree for tree in trees if id(tree) in kept]


def tree_items(trees: list[dict], tasks: dict, pictures: Pictures) -> list[dict]:
    """The content of the page for each tree (page_files/trees.js reads these keys)."""
    return [item for tree in trees if (item := _item(tree, tasks, pictures))]


def _item(tree: dict, tasks: dict, pictures: Pictures) -> dict | None:
    nodes = [_node(node, i) for i, node in enumerate(tree["nodes"][:MOST_NODES]) if isinstance(node, dict)]
    if len(nodes) != min(len(tree["nodes"]), MOST_NODES) or not nodes:
        return None  # parents are indices, so a tree with missing nodes cannot be drawn
    rows = [row for row in tree.get("rows") or [] if isinstance(row, dict)]
    return {
        "step": number(tree["step"]) + 1,  # the step that trained on it, as log.jsonl and the curves count
        "prompt": text(tree.get("prompt_id"), 200),
        "task": text(tree.get("question_type"), 80),
        "question": text(tree.get("question"), 4_000),
        "opened": _opened(tree),
        "forked_by": text(tree.get("forked_by"), 30),
        "picture": pictures.add(first_picture(tree)),
        "size": size(tree.get("image_size")),
        "nodes": nodes,
        "rows": [_row(row, tree, nodes, tasks) for row in rows if _is_leaf(row.get("leaf"), nodes)],
        "cut": text(tree.get("cut"), 300),
    }


def _node(node: dict, place: int) -> dict:
    parent = node.get("parent")
    written = text(node.get("text"), 20_000)
    shown = PLACEHOLDERS.sub("[picture]", written)
    # without this, the page would show the hundreds of placeholder tokens of a picture
    lists = {name: node[name] for name in NODE_LISTS if isinstance(node.get(name), list) and node[name]}
    lists = lists if shown == written else {}
    pictures = node.get("pictures") if isinstance(node.get("pictures"), list) else []
    pictures = [one for one in pictures if isinstance(one, str) and PICTURE.fullmatch(one)]
    return {
        "parent": parent if isinstance(parent, int) and -1 <= parent < place else -1,
        "kind": text(node.get("kind") or "node", 30),
        "status": text(node.get("status") or "unknown", 30),
        "sampled": node.get("sampled") is not False,
        "count": number(node.get("count")),
        "group": number(node.get("group")),
        "text": shown,
        "advantage": number(node.get("advantage")),
        "reward": number(node.get("reward")),
        "error": text(node.get("error"), 200),
        **({"pictures": pictures[:MOST_PICTURES]} if pictures else {}),
        **lists,
    }


def _row(row: dict, tree: dict, nodes: list[dict], tasks: dict) -> dict:
    rewards = row.get("rewards") if isinstance(row.get("rewards"), dict) else {}
    return {
        "leaf": row["leaf"],
        "rewards": {text(name, 60): number(value) for name, value in rewards.items()},
        "reward": number(row.get("reward")),
        "advantage": number(row.get("advantage")),
        "shapes": _answer_shapes(row["leaf"], tree, nodes, tasks),
    }


def _answer_shapes(leaf: int, tree: dict, nodes: list[dict], tasks: dict) -> list[dict]:
    """The shapes of a leaf's completion on the prompt's picture; [] if they cannot be determined."""
    task, picture_size = tasks.get(tree.get("question_type")), size(tree.get("image_size"))
    if task is None or picture_size is None or task.parse_answer is None or task.config["frame"] == "none":
        return []
    parts = []
    while leaf != -1:
        parts.append(nodes[leaf]["text"])
        leaf = nodes[leaf]["parent"]
    completion = _opened(tree) + SPECIAL_TOKEN.sub("", "".join(reversed(parts)))
    processed = size(tree.get("processed_size"))
    known = {
        "id": tree.get("prompt_id"),
        "question_type": task.name,
        "image_size": picture_size,
        "processed_size": processed,
        "record": {},
        "thought_end": task.thought_end,
    }
    try:
        thought_tags(task.thought_end)
        parsed = task.parse_answer(completion, **known)
    except Exception:  # a parser that needs the whole record: the tree is shown without shapes
        return []
    return shapes_in(parsed, task.config["frame"], picture_size, processed)


def _opened(tree: dict) -> str:
    """The tag of a thought that the chat template opened: it belongs to the prompt, and a completion goes on in it."""
    return text(tree.get("opened"), 60)


def _is_leaf(leaf, nodes: list[dict]) -> bool:
    return isinstance(leaf, int) and not isinstance(leaf, bool) and 0 <= leaf < len(nodes)
