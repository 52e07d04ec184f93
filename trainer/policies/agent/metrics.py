"""Metrics of agent rollouts: turns, tool calls and their failures, and how branches differ."""

from __future__ import annotations

from collections import Counter

from trainer.policies.agent.calls import FAILURES, FAULTS
from trainer.policies.agent.observation import TurnOutcome
from trainer.tree import PROMPT, Tree


def agent_sums(trees: list[Tree]) -> dict[str, tuple[float, float]]:
    """Name -> (sum, count) over the trees of one process, without prompts that could not be read.

    agent/turns: turns with an observation per leaf; agent/answered_share: share of leaves that end in an answer;
    agent/invalid_share: share of turns without an action; agent/one_turn_share: share of trees in which every chain
    answered in its first turn; agent/turn_rewards: sum of the rewards of a leaf's turns, if an environment gives any.
    Per prompt: tool/calls: calls made; tool/reused: calls not made because an equal turn at the same point had made
    them; tool/replayed: calls repeated to rebuild an environment without _fork; tool/errors/KIND: FAILURES, which ended
    the branch, and FAULTS, which were reported to the model.
    tool/seconds: duration of a turn's calls; tool/cut_share: share of observations that were cut.
    fork/different_observation: share of branches whose next observation no earlier sibling had, without branches that
    answered at once as all earlier siblings did.
    """
    grown = [tree for tree in trees if tree.nodes[0].sampled]
    outcomes = [node.extra for tree in grown for node in tree.nodes if isinstance(node.extra, TurnOutcome)]
    steps = [node for tree in grown for node in tree.nodes if node.kind == "step"]
    leaves = [(tree, leaf) for tree in grown for leaf in tree.leaves()]
    called = [one for one in outcomes if one.calls or one.reused or one.error]
    counts = Counter(one.error for one in outcomes if one.error) + Counter(f for one in outcomes for f in one.faults)
    ends = [tree.nodes[leaf] for tree, leaf in leaves]
    answered = sum(getattr(end.extra, "answered", False) and end.status != "length" for end in ends)
    roots = [(tree, root) for tree in grown for root, node in enumerate(tree.nodes) if node.parent == PROMPT]
    at_once = sum(not any(node.parent == root for node in tree.nodes) for tree, root in roots)
    sums = {
        "agent/turns": (sum(_turns(tree, leaf) for tree, leaf in leaves), len(leaves)),
        "agent/answered_share": (answered, len(leaves)),
        "agent/invalid_share": (sum(one.invalid for one in outcomes), len(steps)),
        "agent/one_turn_share": (at_once, len(roots)),
        "tool/calls": (sum(one.calls for one in outcomes), len(grown)),
        "tool/reused": (sum(one.reused for one in outcomes), len(grown)),
        "tool/replayed": (sum(one.replayed for one in outcomes), len(grown)),
        "tool/seconds": (sum(one.seconds for one in called), len(called)),
        "tool/cut_share": (sum(one.cut for one in called), len(called)),
        "fork/different_observation": _different(grown),
    }
    if any(node.reward for tree in grown for node in tree.nodes):
        sums["agent/turn_rewards"] = (sum(sum(tree.turn_rewards(leaf)) for tree, leaf in leaves), len(leaves))
    return sums | {f"tool/errors/{kind}": (counts[kind], len(grown)) for kind in (*FAILURES, *FAULTS)}


def leaf_report(tree: Tree, leaf: int) -> dict:
    """turns (with an observation), tool_calls, invalid_turns and tool_error (its kind, or None) of one leaf."""
    outcomes = [tree.nodes[i].extra for i in tree.path(leaf) if isinstance(tree.nodes[i].extra, TurnOutcome)]
    return {
        "turns": len(outcomes),
        "tool_calls": sum(one.calls + one.reused for one in outcomes),
        "invalid_turns": sum(one.invalid for one in outcomes),
        "tool_error": next((one.error for one in outcomes if one.error), None),
    }


def _turns(tree: Tree, leaf: int) -> int:
    return sum(tree.nodes[i].kind == "observation" for i in tree.path(leaf))


def _different(trees: list[Tree]) -> tuple[int, int]:
    different = branches = 0
    for tree in trees:
        observation = {node.parent: tuple(node.token_ids) for node in tree.nodes if node.kind == "observation"}
        siblings: dict[int, list] = {}
        for i, node in enumerate(tree.nodes):
            if node.kind == "step" and node.parent != PROMPT:
                siblings.setdefault(node.parent, []).append(observation.get(i))
        for found in siblings.values():
            for place in range(1, len(found)):
                different += found[place] not in found[:place]
                branches += any(one is not None for one in found[: place + 1])
    return different, branches
