"""The table of methods; each is a branching policy plus an advantage estimator."""

# N rows (leaves) of all processes

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from config.agents import parse_environment_args
from trainer.advantages.gigpo import gigpo
from trainer.advantages.intra_inter import intra_inter
from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.parent_difference import parent_difference
from trainer.advantages.redistribute import redistribute
from trainer.advantages.reinforce_plus_plus import reinforce_plus_plus
from trainer.advantages.rloo import rloo
from trainer.advantages.thought_answer import opposed_thoughts, thought_answer, zero_spread_share
from trainer.advantages.turn_value import turn_value
from trainer.policies.agent.build import agent_policy, shape_of
from trainer.policies.agent.step import AgentStepPolicy, TreeShape
from trainer.policies.agent.surprisal import SurprisalShape
from trainer.policies.chain import ChainPolicy
from trainer.policies.entropy.policy import EntropyPolicy
from trainer.policies.entropy.rules import ForkRule, OpenText
from trainer.policies.entropy.threshold import threshold_of
from trainer.policies.policy import Policy
from trainer.policies.thought_answer import ThoughtAnswerPolicy


@dataclass(frozen=True)
class Batch:
    """The inputs from which a policy is created.

    Attributes:
        args: the GRPOConfig.
        records: the parsed record of each prompt to roll out; `record["id"]` is its tree's `prompt_id`.
        tasks: task_type -> Task.
        tokenizer, module: of the model.
        warming_up: whether the generation is part of the warm-up (`Method.warm_up_leaves`).
        memory: kept between batches and saved with checkpoints (JSON values).
    """

    args: Any
    records: list[dict] = field(default_factory=list)
    tasks: dict = field(default_factory=dict)
    tokenizer: Any = None
    module: Any = None
    warming_up: bool = False
    memory: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """Rewards and groups of N rows.

    Attributes:
        rewards: (N,) float64, NaN for a row that abstains.
        prompts: (N,) id of the row's prompt.
        groups: (N,) id of the row's tree in the prompt's forest (its thought in grpo_ma), unique over all prompts.
        closed: (N,) bool, False for rows of a thought that never closed.
        lengths: (N,) sampled tokens of the row's completion.
        ranks: (N,) process of each row.
        trained: (N,) bool, False for rows that only define the advantages of others.
    """

    rewards: np.ndarray
    prompts: np.ndarray
    groups: np.ndarray
    closed: np.ndarray
    lengths: np.ndarray
    ranks: np.ndarray
    trained: np.ndarray

    def trained_on(self, rank: int) -> np.ndarray:
        """The indices of the rows that a process trains on."""
        return np.flatnonzero(self.trained & (self.ranks == rank))


@dataclass(frozen=True)
class Credit:
    """Advantages of N rows: `leaf` of the row itself (in grpo_ma, its answer), `thought` None for methods without."""

    leaf: np.ndarray
    thought: np.ndarray | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def weighted(self, rows: np.ndarray, weights) -> Credit:
        """The advantages of these rows, times their weights."""
        weights = np.asarray(weights)
        return Credit(self.leaf[rows] * weights, None if self.thought is None else self.thought[rows] * weights)


@dataclass(frozen=True)
class Method:
    """How a method grows its trees and assigns credit, and what it needs from the trainer.

    Attributes:
        policy: batch -> the policy that decides where its rollouts branch.
        credit: (rows, args) -> Credit; every process computes it over the rows of all processes.
        node_values: (tree, {leaf node: advantage}, {leaf node: reward}, args) -> one advantage per node, for methods
            whose inner nodes have their own advantages; the dicts hold NaN for a leaf that abstains. None: all tokens
            of a row have the row's.
        ratio_per_turn: whether `importance_sampling_level sequence` gives each turn its own ratio, and not each row.
        discount: args -> discount per turn of a leaf's reward, see `trainer.advantages.totals.discounted`; None for
            methods whose completions have no turns.
        two_terms: args -> whether thoughts and answers are two terms of the objective (outside the warm-up).
        warm_up_leaves: (args, optimiser step) -> leaves per prompt during the warm-up, None after it.
        acts: whether completions act in environments (tasks with `make_environment`), in training and evaluation.
        ends_with_eos: whether a finished completion ends with an end-of-sequence token; if False, it ends with the tag
            of its answer, and TRL's metrics of terminated completions do not apply.
    """

    policy: Callable[[Batch], Policy]
    credit: Callable[[Rows, Any], Credit]
    node_values: Callable[..., list[float]] | None = None
    ratio_per_turn: bool = False
    discount: Callable[[Any], float | None] = lambda args: None
    two_terms: Callable[[Any], bool] = lambda args: False
    warm_up_leaves: Callable[[Any, int], int | None] = lambda args, step: None
    acts: bool = False
    ends_with_eos: bool = True


def credit_grpo(rows: Rows, args) -> Credit:
    metrics = {"advantages/zero_spread": zero_spread_share(rows.rewards, rows.prompts)}
    return Credit(leaf=leaf_group(rows.rewards, rows.prompts, args.scale_rewards), metrics=metrics)


def credit_rloo(rows: Rows, args) -> Credit:
    metrics = {"advantages/zero_spread": zero_spread_share(rows.rewards, rows.prompts)}
    return Credit(leaf=rloo(rows.rewards, rows.prompts, args.scale_rewards), metrics=metrics)


def credit_reinforce_plus_plus(rows: Rows, args) -> Credit:
    compared = rows.prompts if args.reward_baseline == "prompt" else np.zeros(len(rows.prompts))
    metrics = {"advantages/zero_spread": zero_spread_share(rows.rewards, compared)}
    leaf = reinforce_plus_plus(rows.rewards, rows.prompts, args.reward_baseline, args.scale_rewards)
    return Credit(leaf=leaf, metrics=metrics)


def credit_grpo_ma(rows: Rows, args) -> Credit:
    result = thought_answer(rows.rewards, rows.prompts, rows.groups, rows.closed, args.scale_rewards)
    opposed = opposed_thoughts(result.thought, result.answer, rows.groups, rows.closed)
    metrics = {
        "variance/between": result.between,
        "variance/within": result.within,
        "variance/rho": result.rho,
        "thought/zero_spread": result.thought_zero_spread,
        "thought/sign_disagreement": float(np.mean(opposed)) if opposed else float("nan"),
        "answer/zero_spread": result.answer_zero_spread,
    }
    return Credit(leaf=result.answer, thought=result.thought, metrics=metrics)


def credit_tree_grpo(rows: Rows, args) -> Credit:
    metrics = {
        "intra/zero_spread": zero_spread_share(rows.rewards, rows.groups),
        "inter/zero_spread": zero_spread_share(rows.rewards, rows.prompts),
    }
    leaf = intra_inter(rows.rewards, rows.prompts, rows.groups, args.advantage, args.scale_rewards)
    return Credit(leaf=leaf, metrics=metrics)


def chains(batch: Batch) -> ChainPolicy:
    return ChainPolicy(batch.args.num_generations, batch.args.max_completion_length)


def thoughts_and_answers(batch: Batch) -> ThoughtAnswerPolicy:
    args, answers = batch.args, 1 if batch.warming_up else batch.args.answer_num
    return ThoughtAnswerPolicy(
        args.think_num,
        answers,
        args.max_thought_length,
        args.max_answer_length,
        args.thought_end,
        extends=args.on_zero_spread == "grow" and not batch.warming_up,
    )


def forking_chains(batch: Batch) -> EntropyPolicy:
    args, memory = batch.args, batch.memory
    threshold = threshold_of(args.fork_rule, args.fork_share, args.fork_entropy, memory)
    running = args.fork_rule in ("entropy", "surprisal") and args.fork_entropy is None
    return EntropyPolicy(
        num_trees=args.num_trees,
        num_generations=args.num_generations,
        max_tokens=args.max_completion_length,
        rule=ForkRule(args.fork_rule, threshold, seed=f"{args.seed} {memory.get('fork_generation', 0)}"),
        text=OpenText(batch.tokenizer.decode, () if args.fork_in_answer else (args.thought_end, "<answer>")),
        min_gap=args.min_gap,
        branch_factor=args.branch_factor,
        distinct=args.distinct_forks,
        share=args.fork_share if running else None,
        memory=memory,
    )


def segment_trees(batch: Batch) -> EntropyPolicy:
    """Siblings are independent samples: their mean is then an unbiased estimate of their parent's value."""
    args = batch.args
    return EntropyPolicy(
        num_trees=args.first_segments,
        num_generations=args.num_generations,
        max_tokens=args.max_completion_length,
        rule=ForkRule("fixed", threshold_of("fixed", 0.0, None, batch.memory)),
        text=OpenText(batch.tokenizer.decode),
        min_gap=args.segment_length,
        branch_factor=args.segment_branches,
        distinct=False,
        memory=batch.memory,
    )


def agent_trees(batch: Batch) -> AgentStepPolicy:
    return _agents(batch, shape_of(batch.args))


def agent_chains(batch: Batch) -> AgentStepPolicy:
    return _agents(batch, TreeShape(batch.args.num_generations))


def surprising_turns(batch: Batch) -> AgentStepPolicy:
    args = batch.args
    shape = SurprisalShape(args.turn_chains, args.turn_branches, args.turn_rounds, args.sibling_penalty)
    return _agents(batch, shape)


def _agents(batch: Batch, shape: TreeShape | SurprisalShape) -> AgentStepPolicy:
    args = batch.args
    return agent_policy(
        args,
        batch.records,
        batch.tasks,
        batch.tokenizer,
        batch.module,
        parse_environment_args(args.environment_args),
        shape=shape,
        length=args.max_completion_length,
    )


def separate_terms(args) -> bool:
    return args.objective == "split" or (args.objective == "auto" and args.answer_num > 1)


def one_answer(args, step: int) -> int | None:
    """M is 1 during `answer_warmup_steps`: one leaf per thought."""
    return args.think_num if step < args.answer_warmup_steps else None


METHODS = {
    "grpo": Method(policy=chains, credit=credit_grpo),
    "rloo": Method(policy=chains, credit=credit_rloo),
    "reinforce_plus_plus": Method(policy=chains, credit=credit_reinforce_plus_plus),
    "grpo_ma": Method(
        policy=thoughts_and_answers, credit=credit_grpo_ma, two_terms=separate_terms, warm_up_leaves=one_answer
    ),
    "tree_grpo": Method(
        policy=agent_trees,
        credit=credit_tree_grpo,
        discount=lambda args: args.gamma,
        acts=True,
        ends_with_eos=False,
    ),
    "gigpo": Method(
        policy=agent_chains,
        credit=credit_grpo,
        node_values=lambda tree, advantages, rewards, args: gigpo(
            tree, advantages, rewards, args.step_weight, args.gamma, args.scale_rewards
        ),
        discount=lambda args: 1.0,  # an episode's return is not discounted, those of its steps are
        acts=True,
        ends_with_eos=False,
    ),
    "turn_value": Method(
        policy=surprising_turns,
        credit=credit_grpo,
        node_values=lambda tree, advantages, rewards, args: turn_value(tree, advantages, args.turn_baseline),
        ratio_per_turn=True,
        discount=lambda args: args.gamma,
        acts=True,
        ends_with_eos=False,
    ),
    "tree_adv": Method(
        policy=forking_chains,
        credit=credit_grpo,
        node_values=lambda tree, advantages, rewards, args: redistribute(tree, advantages, args.aggregation),
    ),
    "parent_difference": Method(
        policy=segment_trees,
        credit=credit_grpo,
        node_values=lambda tree, advantages, rewards, args: parent_difference(tree, advantages),
    ),
}
