"""Growing a generation: which prompts, the trees, their rewards, and the advantages the loss trains on."""

# B rows of a process, N rows of all processes, T completion tokens

from __future__ import annotations

import json
import logging
from contextlib import contextmanager

import numpy as np
import torch
from accelerate.utils import gather_object
from trl.models.utils import disable_gradient_checkpointing, unwrap_model_for_generation

from task.rewards.router import TaskReward
from trainer.advantages.totals import row_totals
from trainer.credit import leaf_values, token_values
from trainer.engines.merged_lora import merged_lora
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.engines.unsharded import unsharded
from trainer.logprobs.micro_batches import partition
from trainer.logs.metrics import length_correlation, rollout_sums
from trainer.logs.progress import warn_of_failures, warn_of_unclosed, without_record_dumps
from trainer.logs.verbose import print_trees, verbose
from trainer.methods import METHODS, Batch, Rows
from trainer.rollout import Rollout
from trainer.sampler import TreeSampler

logging.getLogger("trl.trainer.grpo_trainer").addFilter(without_record_dumps)


class TreeGeneration:
    """The part of GRPOMATrainer that makes a batch; stands before `trl.GRPOTrainer` in the order of classes.

    Attributes:
        memory: what a method keeps from batch to batch (JSON), see `trainer.methods.Batch`.
    """

    def _get_train_sampler(self, dataset=None):
        self._sampler = sampler = TreeSampler(
            num_prompts=len(dataset if dataset is not None else self.train_dataset),
            prompts_per_rank=self.args.per_device_train_batch_size * self.args.steps_per_generation // self.args.leaves,
            leaves=self.args.leaves,
            ranks=self.accelerator.num_processes,
            repeats=self.args.steps_per_generation * self.num_iterations,
            sync=self.args.sync_prompt_across_ranks,
            shuffle=self.shuffle_dataset,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
        )
        if sampler.unused and self.accelerator.is_main_process:
            print(f"{sampler.unused} of {sampler.num_prompts} prompts are left over in each epoch, others in the next")
        return sampler

    # --- Rollouts --------------------------------------------------------------------------------------------------

    @property
    def _warming_up(self) -> bool:
        return METHODS[self.args.method].warm_up_leaves(self.args, self.state.global_step) is not None

    @contextmanager
    def _generating(self, temperature: float):
        """An engine on the bare policy in eval mode, no gradients or checkpointing; all restored, also after errors."""
        training = self.model.training
        sampling = Sampling(temperature, self.top_k, self.top_p, self.min_p or 0.0, self.repetition_penalty)
        checkpointing = disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs)
        unwrapped = unwrap_model_for_generation(self.model_wrapped, self.accelerator)
        self.model.eval()
        try:
            with (
                checkpointing,
                unwrapped as model,
                unsharded(self.model_wrapped),
                torch.no_grad(),
                self.accelerator.autocast(),
                merged_lora(model),
            ):
                yield TransformersEngine(
                    model,
                    self.module,
                    self._tokenizer,
                    sampling,
                    eos_ids=self.eos_token_ids,
                    forbidden_ids=self.module.forbidden_token_ids(self.processing_class),
                    max_prompts=self.args.rollout_prompts,
                )
        finally:
            self.model.train(training)

    def _grow(self, prompts, trainer) -> dict[str, list]:
        """TRL's `rollout_func`: grows one tree for each run of `policy.leaves` equal rows."""
        args, leaves = self.args, self._batch_policy.leaves
        assert len(prompts) == len(self._batch_rows) and len(prompts) % leaves == 0
        rows = self._batch_rows[::leaves]
        encoded = [self.encoder.encode(row) for row in rows]
        ids = [record["id"] for record in self._batch_records]
        with self._generating(self.temperature) as engine, self._rollout_bar as engine.progress:
            trees = engine.grow(encoded, self._batch_policy, ids)
        prompts = [prompt or self.encoder.blank() for prompt in encoded]
        self._rollout = Rollout.from_trees(prompts, trees, leaves, self.eos_token_ids[0])
        self.forward.start(self._rollout)
        self._partition = partition(self._rollout, args.steps_per_generation, args.gradient_accumulation_steps)
        self._prefetch()
        gap = tuple(map(sum, zip((0.0, 0.0), *self._sampler_gap, strict=True)))
        self._sampler_gap = []
        own = self._batch_policy.metrics(trees) if hasattr(self._batch_policy, "metrics") else {}
        speed = self._rollout_bar.sums()
        logged = self._log_sums(rollout_sums(self._rollout) | speed | own | {"sampling/policy_gap": gap})
        if hasattr(self._batch_policy, "remember"):
            self._batch_policy.remember(logged)
        warn_of_unclosed(self._metrics["train"].get("thought/unclosed_share", [0.0])[-1], args)
        faults = {name: count for name, count in logged.items() if name.startswith("tool/errors/")}
        warn_of_failures(logged["rollout/failed_share"], faults)
        return self._rollout.as_trl()

    def _prefetch(self) -> None:
        """Has the prompts of the next generation read while this one trains; the sampler's order is known."""
        window = self.args.window
        following = self.state.global_step // window + 1
        if following * window < self.state.max_steps:
            indices = self._sampler.prompts_of(following, self.accelerator.process_index)
            self.encoder.prefetch([self.train_dataset[i] for i in indices])

    def _generate_and_score_completions(self, inputs):
        args, warming_up = self.args, self._warming_up
        step = args.num_generations // args.think_num if warming_up else 1  # M = 1: one row a thought
        inputs = self._batch_rows = inputs[::step]
        leaves = args.num_generations // step
        self._batch_records = [json.loads(row["record"]) for row in inputs[::leaves]]
        batch = Batch(
            args,
            self._batch_records,
            self.tasks,
            tokenizer=self._tokenizer,
            module=self.module,
            warming_up=warming_up,
            memory=self.memory,
        )
        policy = self._batch_policy = METHODS[args.method].policy(batch)
        assert policy.leaves == leaves, f"{policy.leaves} leaves, {leaves} rows a prompt"
        self._batch_split = METHODS[args.method].splits(args) and not warming_up  # holds for all passes over this batch
        self._active_rows = None
        self.num_generations = policy.leaves
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self.num_generations = self.args.num_generations
        if not METHODS[args.method].ends_with_eos:
            self._replace_clipped_ratio()
        return self._add_credit(output)

    def _generate(self, prompts):
        prompt_ids, completion_ids, mask, _, *rest = super()._generate(prompts)
        # TRL decodes without special tokens, and a tokenizer may list <answer> as one.
        texts = self.module.completion_texts(completion_ids, self.eos_token_ids)
        return prompt_ids, completion_ids, mask, texts, *rest

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        infinite = torch.isinf(rewards)
        self._metrics["train"]["rewards/non_finite"].append(infinite.sum().item())
        rewards[infinite] = torch.nan
        failed = torch.tensor([row["failed"] for row in inputs], device=rewards.device)
        rewards[self.accelerator.gather(failed)] = torch.nan
        self._rewards_per_func = rewards
        return rewards

    # --- Credit ----------------------------------------------------------------------------------------------------

    def _add_credit(self, output: dict) -> dict:
        """TRL's output with the method's advantages, the parts of the objective and the row ids."""
        rollout, args, method = self._rollout, self.args, METHODS[self.args.method]
        groups = self._row_groups()
        rewards = self._row_rewards(groups[0])
        all_rows = Rows(rewards, *groups)
        credit = method.credit(all_rows, args)
        correlation = length_correlation(credit.leaf, all_rows.lengths)
        for name, value in (credit.metrics | {"advantages/length_correlation": correlation}).items():
            self._metrics["train"][name].append(value)
        rows, rank = len(rollout.row_tree), self.accelerator.process_index
        mine = slice(rank * rows, (rank + 1) * rows)
        output["row_ids"] = torch.arange(rows)
        output["advantages"] = leaf = self._tensor(credit.leaf[mine])
        if credit.thought is not None:
            is_thought = [rollout.per_token(row, lambda node: int(node.kind == "thought")) for row in range(rows)]
            mask = self._token_tensor(is_thought, output, torch.long)
            thought = self._tensor(credit.thought[mine])
            output |= {"thought_mask": mask, "thought_advantages": thought, "answer_advantages": leaf}
            if self._batch_policy.leaves > args.think_num:  # with M = 1 both are the leaf's: stock GRPO, bit for bit
                output["advantages"] = torch.where(mask.bool(), thought[:, None], leaf[:, None])
        if method.node_values is not None:
            known = np.where(np.isnan(rewards), np.nan, credit.leaf)[mine]  # a leaf that abstains is not one worth 0
            values = token_values(rollout, known, lambda *found: method.node_values(*found, args))
            output["advantages"] = self._token_tensor(values, output)
        if args.shared_token_weight == "once":
            trained = (output["completion_mask"] * output["tool_mask"]).any(dim=1).tolist()
            output["tool_mask"] = output["tool_mask"] * self._token_tensor(rollout.shares(trained), output)
        self._replace_logged_advantages(credit.leaf)
        if hasattr(self._batch_policy, "reward_sums"):
            self._log_sums(self._batch_policy.reward_sums(rollout.trees, leaf_values(rollout, rewards[mine])))
        if self.tree_log is not None and self.tree_log.due(self.state.global_step):
            per_func = dict(zip(self.reward_func_names, self._rewards_per_func[mine].T.tolist(), strict=True))
            scores = (per_func, rewards[mine], output["advantages"].tolist(), self._tokenizer.decode)
            self.tree_log.write(self.state.global_step, rollout, self._batch_records, *scores)
        if verbose() and self.accelerator.is_main_process:
            print_trees(rollout, rewards[mine], self._tokenizer.decode)
        return output

    def _replace_clipped_ratio(self) -> None:
        """TRL takes a completion without an end token as cut, but an agent's ends with the tag of its answer."""
        logged = self._metrics["train"]
        logged["completions/clipped_ratio"][-1] = logged["rollout/cut_share"][-1]
        for name in ("mean", "min", "max"):
            del logged[f"completions/{name}_terminated_length"]  # of those with an end token

    def _token_tensor(self, rows: list[list], output: dict, dtype=torch.float32) -> torch.Tensor:
        """(B, T) of one list a row, padded with 0 as the completions are."""
        width = output["completion_ids"].size(1)
        return self._tensor([row + [0] * (width - len(row)) for row in rows], dtype)

    def _row_rewards(self, prompts: np.ndarray) -> np.ndarray:
        """(N,) one reward a row, NaN for a row without: `row_totals`. A task's own rewards are the judges."""
        judges = [isinstance(function, TaskReward) for function in self.reward_funcs]
        return row_totals(self._rewards_per_func.cpu(), self.reward_weights.cpu(), prompts, judges)

    def _row_groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(N,) prompt, group, closed flag and length of every row of all processes, by explicit ids."""
        rollout, rank, trees = self._rollout, self.accelerator.process_index, len(self._rollout.trees)
        offset = 0 if self.args.sync_prompt_across_ranks else rank * trees
        largest = 1 + self._largest(max(node.group for tree in rollout.trees for node in tree.nodes))
        ids = [
            [
                offset + tree,
                (rank * trees + tree) * largest + rollout.leaf(row).group,
                rollout.closed(row),
                sum(rollout.per_token(row, lambda node: int(node.sampled))),
            ]
            for row, tree in enumerate(rollout.row_tree)
        ]
        prompts, groups, closed, lengths = self.accelerator.gather(self._tensor(ids, torch.long)).cpu().numpy().T
        if self.args.sync_prompt_across_ranks and self.accelerator.num_processes > 1:
            names = gather_object([tree.prompt_id for tree in rollout.trees])
            assert names == names[:trees] * self.accelerator.num_processes, f"processes hold different prompts: {names}"
        return prompts, groups, closed.astype(bool), lengths

    def _replace_logged_advantages(self, advantages: np.ndarray) -> None:
        """The completions table shows the leaf's own advantage instead of the one TRL computed."""
        logged = self._logs["advantages"]
        for _ in advantages:
            logged.pop()
        logged.extend(advantages.tolist())

    def _log_sums(self, sums: dict[str, tuple[float, float]]) -> dict[str, float]:
        """Files sum / count over all processes under each name, and returns the quotients (one collective).

        A process may lack some of the names: what its rollouts say depends on what was sampled.
        """
        totals: dict[str, list[float]] = {}
        for found in gather_object([sums]):
            for name, pair in found.items():
                totals[name] = [old + float(new) for old, new in zip(totals.get(name, [0.0, 0.0]), pair, strict=True)]
        quotients = {name: total / count if count else float("nan") for name, (total, count) in totals.items()}
        for name, value in quotients.items():
            self._metrics["train"][name].append(value)
        return quotients

    def _largest(self, count: int) -> int:
        """The largest `count` of all processes."""
        return int(self.accelerator.gather(self._tensor([count], torch.long)).max())

    def _tensor(self, values, dtype=torch.float32) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), device=self.accelerator.device).to(dtype)
