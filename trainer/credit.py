"""From the rewards of rows to the inputs of the loss: groups, advantages per row or per token, masks and weights.

Only functions without state; the trainer gathers over processes and passes the results on.
"""

# B rows of a process, N rows of all processes, T completion tokens

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from trainer.advantages.totals import discounted, row_totals
from trainer.generation import Generation, Training
from trainer.methods import Credit, Method, Rows
from trainer.processes import Processes
from trainer.rollout import Rollout


def row_keys(training: Training, rank: int, spanning: bool, largest_group: int) -> list[list[int]]:
    """One row per scored row of a process: prompt id, tree id (of the thought in grpo_ma), closed flag, number of
    sampled tokens, rank, and whether the row trains.

    Args:
        training: of the process.
        rank: of this process.
        spanning: whether all processes grow trees of the same prompts, so that a prompt's rows span them.
        largest_group: the largest `Node.group` over all processes.
    """
    rollout, trained = training.scored, set(training.rows)
    trees = len(rollout.trees)
    first = 0 if spanning else rank * trees
    return [
        [
            first + tree,
            (rank * trees + tree) * (1 + largest_group) + rollout.leaf(row).group,
            rollout.closed(row),
            sum(rollout.per_token(row, lambda node: int(node.sampled))),
            rank,
            row in trained,
        ]
        for row, tree in enumerate(rollout.row_tree)
    ]


def all_rows(
    generation: Generation,
    processes: Processes,
    spanning: bool,
    weights: torch.Tensor,
    is_task_reward: list[bool],
    gamma: float | None = None,
) -> Rows:
    """Rewards and groups of the N scored rows of all processes, whose numbers may differ between processes.

    Args:
        generation: provides the rollout and its rewards.
        spanning: as in `row_keys`.
        weights: (functions,) weight of each reward function.
        is_task_reward: (functions,) bool, see `row_totals`.
        gamma: discount per turn of an episode's return, see `discounted`; None for methods without turns.
    """
    rollout = generation.rollout
    if spanning and processes.count > 1:
        names = processes.objects([tree.prompt_id for tree in rollout.trees])
        expected = names[: len(rollout.trees)] * processes.count
        assert names == expected, f"processes hold different prompts: {names}"
    largest = processes.largest(max(node.group for tree in rollout.trees for node in tree.nodes))
    keys = processes.objects(row_keys(generation.training, processes.rank, spanning, largest))
    prompts, groups, closed, lengths, ranks, trained = np.array(keys, dtype=np.int64).T
    rewards = row_totals(generation.rewards.cpu(), weights.cpu(), prompts, is_task_reward)
    if gamma is not None:
        scored = generation.training.scored
        of_rows = zip(scored.row_tree, scored.row_leaf, strict=True)
        own = [discounted(scored.trees[tree].turn_rewards(leaf), gamma) for tree, leaf in of_rows]
        of_turns, factors = np.array(processes.objects(own)).T
        rewards = of_turns + factors * rewards
    return Rows(rewards, prompts, groups, closed.astype(bool), lengths, ranks, trained.astype(bool))


def loss_inputs(
    output: dict, generation: Generation, credit: Credit, rewards: np.ndarray, method: Method, args, eos_ids
) -> dict:
    """The inputs of the loss besides TRL's own output of a generation.

    Args:
        output: the result of TRL's `_generate_and_score_completions` for B rows.
        generation: of these rows.
        credit: of the B rows.
        rewards: (B,) one reward per row, NaN for rows without one.
        method: of the run.
        args: the GRPOConfig.
        eos_ids: tokens that end a completion; one that ends with any other token was truncated.

    Returns:
        row_ids (B,); advantages (B,), or (B, T) where the tokens of a row differ; sequence_ids (B, T) for methods whose
        ratios are those of turns; tool_mask (B, T) with
        `mask_truncated_completions`, and as float weights with `shared_token_weight` once (TRL multiplies the policy
        term and the KL term of each token by it); for methods with thoughts also thought_mask (B, T),
        thought_advantages and answer_advantages (B,).
    """
    rollout, policy = generation.rollout, generation.policy
    completions, rows = output["completion_ids"], range(len(rollout.row_tree))
    width, device = completions.size(1), completions.device
    multiple_answers = credit.thought is not None and policy.leaves > policy.start().count

    def by_row(values) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), device=device).to(torch.float32)

    def by_token(lists: list[list], dtype=torch.float32) -> torch.Tensor:
        padded = [values + [0] * (width - len(values)) for values in lists]
        return torch.as_tensor(np.asarray(padded), device=device).to(dtype)

    inputs = {"row_ids": torch.arange(len(rows))}
    if args.mask_truncated_completions:
        kept = by_token([counted_tokens(rollout, row, eos_ids, multiple_answers) for row in rows], torch.long)
        inputs["tool_mask"] = output["tool_mask"] * kept
    advantages = by_row(credit.leaf)
    if credit.thought is not None:
        is_thought = [rollout.per_token(row, lambda node: int(node.kind == "thought")) for row in rows]
        mask, thought = by_token(is_thought, torch.long), by_row(credit.thought)
        inputs |= {"thought_mask": mask, "thought_advantages": thought, "answer_advantages": advantages}
        if multiple_answers:  # with M = 1 both are the leaf's: identical to stock GRPO, bit for bit
            advantages = torch.where(mask.bool(), thought[:, None], advantages[:, None])
    if method.node_values is not None:
        known = np.where(np.isnan(rewards), np.nan, credit.leaf)  # a leaf without a reward counts in no mean
        advantages = by_token(
            token_values(rollout, known, rewards, lambda *of_tree: method.node_values(*of_tree, args))
        )
    if method.ratio_per_turn:
        inputs["sequence_ids"] = by_token([turn_ids(rollout, row) for row in rows], torch.long)
    if args.shared_token_weight == "once":
        mask = inputs.get("tool_mask", output["tool_mask"])
        trained = (output["completion_mask"] * mask).any(dim=1).tolist()
        inputs["tool_mask"] = mask * by_token(rollout.shares(trained))
    return inputs | {"advantages": advantages}


def counted_tokens(rollout: Rollout, row: int, eos_ids: Sequence[int], keep_thoughts: bool) -> list[int]:
    """1 for each completion token of a row that counts under `mask_truncated_completions`, else 0.

    A truncated row is masked out entirely. With `keep_thoughts` a thought that closed still counts: it is one sample
    with several answers, of which others may have ended.
    """
    cut = rollout.completion(row)[-1] not in eos_ids
    return rollout.per_token(row, lambda node: int(not cut or (keep_thoughts and _closed_thought(node))))


def turn_ids(rollout: Rollout, row: int) -> list[int]:
    """For each completion token of a row, how many nodes of its path stand before the token's node."""
    path = rollout.trees[rollout.row_tree[row]].path(rollout.row_leaf[row])
    return rollout.spread(row, {node: place for place, node in enumerate(path)})


def _closed_thought(node) -> bool:
    return node.kind == "thought" and node.status == "ok"


def leaf_values(rollout: Rollout, row_values: Sequence[float]) -> list[dict[int, float]]:
    """{leaf node: value} of each tree, from one value per row; rows that repeat a leaf have the same value."""
    found: list[dict[int, float]] = [{} for _ in rollout.trees]
    for row, (tree, leaf) in enumerate(zip(rollout.row_tree, rollout.row_leaf, strict=True)):
        found[tree][leaf] = float(row_values[row])
    return found


def token_values(
    rollout: Rollout, leaf_advantages: Sequence[float], leaf_rewards: Sequence[float], node_values: Callable
) -> list[list[float]]:
    """One list per row with one value per completion token: the value of the node that owns the token.

    Args:
        leaf_advantages, leaf_rewards: (B,) advantage and reward of each row, NaN where it abstains.
        node_values: (tree, {leaf node: advantage}, {leaf node: reward}) -> one value per node of the tree.
    """
    leaves = zip(leaf_values(rollout, leaf_advantages), leaf_values(rollout, leaf_rewards), strict=True)
    values = [node_values(tree, *found) for tree, found in zip(rollout.trees, leaves, strict=True)]
    return [rollout.spread(row, values[tree]) for row, tree in enumerate(rollout.row_tree)]
