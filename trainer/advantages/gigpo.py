"""GiGPO: the advantage of an episode plus that of a step among the steps that saw the same observation.

arXiv 2505.10978, over the chains of a prompt. With r(i, k) the reward that the environment gave for step k of chain i,
which has T_i steps, the final reward of the completion added to that of the last step, and G_i their sum:

    A_episode(i)  = (G_i - mean G) / F          over the chains of the prompt (`leaf_group`)
    return(i, t)  = sum over k = t .. T_i of gamma^(k - t) * r(i, k)      for t = 1 .. T_i
    A_step(i, t)  = (return - mean return) / F  over the steps of the prompt whose observation is the same
    A(i, t)       = A_episode(i) + w * A_step(i, t)

F is the std of the values compared, or 1 (`scale` "group" or "none"; sample std and epsilon 1e-4, as everywhere). A
step's observation is what the last call returned, its text and its pictures; that of a first step is the prompt. A step
whose observation no other step saw has A_step 0.
"""

from __future__ import annotations

import math

import numpy as np

from trainer.advantages.groups import standardise
from trainer.tree import PROMPT, Tree


def gigpo(
    tree: Tree,
    episode: dict[int, float],
    rewards: dict[int, float],
    step_weight: float = 1.0,
    gamma: float = 1.0,
    scale: str = "group",
) -> list[float]:
    """One advantage per node.

    Args:
        tree: the chains of one prompt; no two leaves share a node.
        episode: leaf node -> A_episode, NaN where it has no reward.
        rewards: leaf node -> G, NaN where it has none.
        step_weight: w.
        gamma: discount per step.
        scale: of the steps, "group" or "none".

    Returns:
        One value per node: of steps as above, of other nodes the episode's; 0 below which no leaf has a reward.

    >>> from trainer.tree import Node
    >>> tree = Tree("p", [Node(PROMPT, "step", [1]), Node(PROMPT, "step", [2])])
    >>> gigpo(tree, {0: 0.5, 1: -0.5}, {0: 1.0, 1: 0.0}, scale="none")
    [1.0, -1.0]
    """
    values = [0.0] * len(tree.nodes)
    steps, returns, seen = [], [], []
    for leaf, reward in rewards.items():
        if math.isnan(reward):
            continue
        path = tree.path(leaf)
        for node in path:
            values[node] = episode[leaf]
        own = [node for node in path if tree.nodes[node].kind == "step"]
        steps += own
        of_turns = tree.turn_rewards(leaf)
        of_turns[-1] += reward - sum(of_turns)
        returns += _returns(of_turns, gamma)
        seen += [_observation(tree, node) for node in own]
    groups = np.unique(seen, return_inverse=True)[1] if seen else []
    for node, advantage in zip(steps, standardise(returns, groups, scale), strict=True):
        values[node] += step_weight * float(advantage)
    return values


def _returns(rewards: list[float], gamma: float) -> list[float]:
    """For each step, the discounted sum of the rewards from it on."""
    found = [0.0]
    for reward in reversed(rewards):
        found.append(reward + gamma * found[-1])
    return found[:0:-1]


def _observation(tree: Tree, step: int) -> str:
    """Equal for two steps of a prompt if and only if they saw the same."""
    above = tree.nodes[step].parent
    if above == PROMPT:
        return "prompt"
    node = tree.nodes[above]
    return f"{node.token_ids} {getattr(node.media, 'media_key', '')}"
