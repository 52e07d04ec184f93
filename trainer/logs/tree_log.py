"""`--log_trees every:N`: rollout trees as lines of `trees.jsonl`, for the tree viewer of scripts/report.py.

One line per tree:

    {"step", "prompt_id", "question_type", "question", "images": [path], "image_size", "processed_size",
     "opened": the tag of a thought with which the prompt ends (only if the chat template opens one),
     "forked_by": the score that chose the forks inside a completion, one of `RULES` of the entropy policy (only then),
     "nodes": [{"parent", "kind", "group", "status", "sampled", "count", "text", "tokens": [text], "entropies",
                "logprobs", "advantage", "reward", "error": kind of a tool's error (only if there was one),
                "pictures": [data URL] (only if an observation has any)}],
     "rows": [{"leaf", "rewards": {function: value}, "reward", "advantage"}],
     "cut": what was left out (only if something was)}

`count` is the number of tokens. `tokens` are their texts, which joined give the node's text: if a character spans
several tokens, the last one has it and the others are empty. `step` is the number of optimiser steps that had been made
when the tree was grown; log.jsonl counts the step that trained on it, one more. `processed_size` is what the task's
functions got: the plane of the model's coordinates (`task.rewards.frames.model_plane`). A node's `advantage` and
`reward` are means over the rows whose path contains it; a node with its own credit has the same value in all of them.
null: does not apply.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from task.errors import UserError
from task.rewards.frames import model_plane
from trainer.logs.tree_pictures import pictures_of
from trainer.rollout import Rollout
from trainer.tree import Node, Tree

FILE_NAME = "trees.jsonl"
MAX_TREE_BYTES = 256 * 2**10
MAX_FILE_BYTES = 64 * 2**20
MAX_TEXT = 2000  # characters of a node's text in a tree that is too large even without tokens
INCOMPLETE = "\ufffd"  # how a decoder renders an incomplete character


def parse_log_trees(value: str | None) -> int | None:
    """N of "every:N", or None for None, "" and "none".

    >>> parse_log_trees("every:20")
    20

    Raises:
        UserError: anything else.
    """
    if value is None or value.lower() in ("", "none"):
        return None
    word, _, number = value.partition(":")
    if word != "every" or not number.isascii() or not number.isdigit() or int(number) < 1:
        raise UserError(f"log_trees={value!r}: give every:N with N optimiser steps of at least 1, or none")
    return int(number)


class TreeLog:
    """Appends the trees of every N-th optimiser step to `trees.jsonl`; made on the first process only.

    Args:
        folder: the run's output_dir.
        every: N. If a generation serves several steps, the first generation at or after each multiple of N is logged.
        tasks: question_type -> Task.
        opened: the tag of a thought, with the white space after it, that the chat template opens; "" for none.
        max_tree_bytes: limit of one line. A larger tree is logged without its pictures, then without its tokens (the
            text stays), then with truncated texts.
        max_file_bytes: limit of the file. When it is reached, one last line says so and later trees are not logged.
    """

    def __init__(
        self,
        folder,
        every: int,
        tasks: dict | None = None,
        opened: str = "",
        max_tree_bytes: int = MAX_TREE_BYTES,
        max_file_bytes: int = MAX_FILE_BYTES,
    ):
        assert every >= 1, every
        self.tasks, self.opened = tasks or {}, opened
        self.file, self.every = Path(folder) / FILE_NAME, every
        self.max_tree_bytes, self.max_file_bytes = max_tree_bytes, max_file_bytes
        self._next: int | None = None  # first step to log; None before the first write
        self._full = False

    def due(self, step: int) -> bool:
        """Whether the trees of the generation at `step` are to be written."""
        return not self._full and (self._next is None or step >= self._next)

    def write(
        self,
        step: int,
        rollout: Rollout,
        records: Sequence[dict],
        rewards: dict[str, Sequence[float]],
        totals: Sequence[float],
        advantages: Sequence,
        decode: Callable[[list[int]], str],
        forked_by: str | None = None,
    ) -> None:
        """Writes the P trees of a rollout, if `due`; a full disk is reported, and training goes on.

        Args:
            step: the optimiser step at which the trees were grown.
            records: (P,) the prompts' records (question_type, question, images).
            rewards: reward function -> (B,) values, NaN where it abstained.
            totals: (B,) rewards of the rows.
            advantages: (B,) one number per row, or one list per row with a number per completion token (padding after
                them is ignored).
            decode: token ids -> text.
            forked_by: see `Policy.forked_by`.
        """
        if not self.due(step):
            return
        around = {"opened": self.opened} if self.opened else {}
        around |= {"forked_by": forked_by} if forked_by else {}
        try:
            self._prepare(step)
            with self.file.open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
                for t, record in enumerate(records):
                    tree = tree_entry(t, rollout, rewards, totals, advantages, decode)
                    line = self._fitted({"step": step, **self._prompt_entry(t, rollout, record), **around, **tree})
                    if out.tell() + len(line.encode("utf-8", "backslashreplace")) > self.max_file_bytes:
                        self._full = True
                        note = f"the file reached {self.max_file_bytes} bytes: later trees are not logged"
                        out.write(json.dumps({"step": step, "cut": note}) + "\n")
                        print(f"{self.file}: {note}", file=sys.stderr)
                        break
                    out.write(line)
        except OSError as error:
            self._full = True
            print(f"{self.file} cannot be written ({error.strerror}): trees are not logged", file=sys.stderr)
        self._next = (step // self.every + 1) * self.every

    def _prepare(self, step: int) -> None:
        """A run that starts at step 0 starts a new file; a resumed one drops an incomplete last line."""
        if self._next is not None or not self.file.exists():
            return
        if step == 0:
            self.file.unlink()
            return
        content = self.file.read_bytes()
        if not content.endswith(b"\n"):
            self.file.write_bytes(content[: content.rfind(b"\n") + 1])

    def _prompt_entry(self, t: int, rollout: Rollout, record: dict) -> dict:
        prompt, task = rollout.prompts[t], self.tasks.get(record.get("question_type"))
        processed_size = [*prompt.processed_sizes, None][0]
        return {
            "prompt_id": rollout.trees[t].prompt_id,
            "question_type": record.get("question_type"),
            "question": str(record.get("question", "")),
            "images": [str(path) for path in record.get("images") or []],
            "image_size": [*prompt.image_sizes, None][0],
            "processed_size": model_plane(task, processed_size) if task is not None else processed_size,
        }

    def _fitted(self, entry: dict) -> str:
        """The entry as one line, shortened step by step until it has at most `max_tree_bytes`, if that is possible."""
        nodes, cuts = entry["nodes"], []
        for leave_out in (_without_pictures, _without_tokens, self._with_short_texts):
            line = _line(entry)
            if len(line) <= self.max_tree_bytes:
                return line
            if cut := leave_out(entry, nodes):
                cuts.append(cut)
                entry["cut"] = ", ".join(cuts)
        return _line(entry)

    def _with_short_texts(self, entry: dict, nodes: list[dict]) -> str:
        room = min(MAX_TEXT, max(20, self.max_tree_bytes // (4 * len(nodes))))
        long = [node for node in nodes if len(node["text"]) > room]
        for node in long:
            node["text"] = node["text"][:room] + " ..."
        entry["question"] = entry["question"][:MAX_TEXT]
        return f"texts of {len(long)} nodes after {room} characters"


def _without_pictures(entry: dict, nodes: list[dict]) -> str:
    pictured = [node for node in nodes if node.pop("pictures", None)]
    return f"pictures of {len(pictured)} nodes" if pictured else ""


def _without_tokens(entry: dict, nodes: list[dict]) -> str:
    for node in nodes:
        fork = node["entropies"][:1]  # the viewer shows the entropy at forks
        node.update(tokens=None, entropies=fork, logprobs=None)
    return f"tokens of {len(nodes)} nodes"


def tree_entry(
    t: int,
    rollout: Rollout,
    rewards: dict[str, Sequence[float]],
    totals: Sequence[float],
    advantages: Sequence,
    decode: Callable[[list[int]], str],
) -> dict:
    """{"nodes", "rows"} of the rollout's t-th tree, see the module's docstring."""
    tree, rows = rollout.trees[t], [row for row, owner in enumerate(rollout.row_tree) if owner == t]
    credit = {row: _token_values(advantages[row], len(tree.tokens(rollout.row_leaf[row]))) for row in rows}
    passing: dict[int, list[tuple[float, float]]] = {i: [] for i in range(len(tree.nodes))}  # (advantage, reward)
    for row in rows:
        start = 0
        for i in tree.path(rollout.row_leaf[row]):
            values = credit[row][start : start + len(tree.nodes[i].token_ids)]
            passing[i].append((_mean(values), float(totals[row])))
            start += len(values)
    nodes = [_node_entry(node, decode) for node in tree.nodes]
    for i, node in enumerate(nodes):
        node["advantage"] = _round(_mean([a for a, _ in passing[i]]), 4)
        node["reward"] = _round(_mean([r for _, r in passing[i]]), 4)
    return {"nodes": nodes, "rows": [_row_entry(tree, row, rollout, rewards, totals, credit[row]) for row in rows]}


def _node_entry(node: Node, decode) -> dict:
    entry = {
        "parent": node.parent,
        "kind": node.kind,
        "group": node.group,
        "status": node.status,
        "sampled": node.sampled,
        "count": len(node.token_ids),
        "text": decode(node.token_ids),
        "tokens": token_texts(node.token_ids, decode),
        "entropies": [_round(x, 3) for x in node.entropies],
        "logprobs": [_round(x, 3) for x in node.logprobs],
    }
    pictures = pictures_of(node)
    entry |= {"pictures": pictures} if pictures else {}
    return entry | ({"error": str(node.error)[:200]} if node.error else {})


def _row_entry(tree: Tree, row: int, rollout: Rollout, rewards, totals, credit: list[float]) -> dict:
    own = tree.nodes[rollout.row_leaf[row]].token_ids
    return {
        "leaf": rollout.row_leaf[row],
        "rewards": {name: _round(values[row], 4) for name, values in rewards.items()},
        "reward": _round(totals[row], 4),
        "advantage": _round(_mean(credit[-len(own) :] if own else credit), 4),
    }


def token_texts(ids: list[int], decode: Callable[[list[int]], str]) -> list[str]:
    """One text per token; a character that spans several tokens is given to the last one.

    >>> token_texts([1, 2, 3], lambda ids: {(1,): "a", (2,): "\\ufffd", (2, 3): "é"}[tuple(ids)])
    ['a', '', 'é']
    """
    texts, open_ids = [], []
    for i, token in enumerate(ids):
        open_ids.append(token)
        text = decode(open_ids)
        waiting = text.endswith(INCOMPLETE) and len(open_ids) < 8 and i + 1 < len(ids)
        texts.append("" if waiting else text)
        open_ids = open_ids if waiting else []
    return texts


def _token_values(value, length: int) -> list[float]:
    return list(value)[:length] if isinstance(value, Sequence) else [float(value)] * length


def _mean(values: Sequence[float]) -> float:
    """The mean of the finite values; NaN if there are none."""
    finite = [float(x) for x in values if math.isfinite(x)]
    return sum(finite) / len(finite) if finite else math.nan


def _round(value: float, digits: int) -> float | None:
    value = float(value)
    return round(value, digits) if math.isfinite(value) else None


def _line(entry: dict) -> str:
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"
