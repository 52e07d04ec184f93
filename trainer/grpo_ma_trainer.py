"""GRPOMATrainer: TRL's GRPOTrainer on rollout trees.

What happens in one generation, top to bottom: the sampler hands every process whole trees; `_grow` grows them with the
forking engine; TRL pads the rows and asks the rewards; `_add_credit` turns leaf rewards into advantages;
`_micro_batches` takes whole trees; `_compute_loss` is TRL's loss, called once a part of the objective on one forward.

# B rows of a process, N rows of all processes, T completion tokens, S micro-batches of a generation
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from contextlib import contextmanager

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers.trainer_callback import ProgressCallback
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing, unwrap_model_for_generation

from config.grpo_config import GRPOConfig
from model.registry import module_for
from model.reward_func import checked_rewards
from trainer.arguments import check_arguments
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.evaluation import predict, summarise
from trainer.forward import RowForward
from trainer.merged import merged_lora
from trainer.methods import METHODS
from trainer.metrics import rollout_sums, sampler_gap
from trainer.micro_batches import partition, take_rows, token_counts
from trainer.progress import LayoutCheck, ShortProgress, warn_of_unclosed
from trainer.prompts import PromptEncoder
from trainer.rollout import Rollout
from trainer.sampler import TreeSampler
from trainer.verbose import print_trees, verbose

PARTS = ("thought", "answer")


class GRPOMATrainer(GRPOTrainer):
    """GRPO on rollout trees: K thoughts x M answers a prompt with dual advantages (grpo_ma), or G chains (grpo).

    Args:
        model: the policy, an instance (see `model.checkpoints.load_policy`).
        reward_funcs: TRL reward callables; `model.reward_func.task_rewards` routes to the tasks' own. Each is called
            with prompts and completions as plain texts, `record` (JSON string), `image_sizes` and `processed_sizes`.
        args: `config.GRPOConfig`.
        train_dataset: rows with the string columns `prompt` and `record` (`dataset.dataset_grpo.build_dataset`).
        eval_dataset: rows of the same form; evaluated greedily, one completion each, with the tasks' own metrics.
        processing_class: the processor (or tokenizer) the module encodes with.
        module: the model family's `VLMModule`; found from the model's config if not given.
        tasks: task_type -> Task, for evaluation.
        **kwargs: passed to `trl.GRPOTrainer` (peft_config, callbacks, optimizers, ...).

    Raises:
        ValueError: data or settings that cannot work, one sentence each.
    """

    _tag_names = ["trl", "grpo", "grpo-ma"]

    def __init__(
        self,
        model,
        reward_funcs,
        args: GRPOConfig,
        train_dataset,
        eval_dataset=None,
        processing_class=None,
        module=None,
        tasks=None,
        **kwargs,
    ):
        check_arguments(train_dataset, kwargs)
        self.module = module or module_for(model.config)
        self.module.processor = processing_class
        self.tasks = tasks or {}
        self._rollout: Rollout | None = None
        self._partition: list[list[int]] = []  # rows of each micro-batch
        self._active_rows: list[int] | None = None
        self._memo = None
        self._sampler_gap: list[tuple[float, float]] = []  # of the previous generation, logged with the next
        self._sharing_checked = False
        bare = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.forward = RowForward(self.module, bare, args.prefix_sharing, args.max_slots, self._largest)
        limits = (args.max_slots if self.forward.sharing else None, args.max_completion_length)
        prompt_rules = (args.max_prompt_length, args.on_long_prompt, args.on_bad_media)
        self.encoder = PromptEncoder(self.module, *prompt_rules, *limits)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
            super().__init__(
                model=model,
                reward_funcs=checked_rewards(reward_funcs),
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                rollout_func=self._grow,
                **kwargs,
            )
        self.eos_token_ids = sorted({*self.eos_token_ids, *self.module.eos_token_ids(self.processing_class)})
        self.add_callback(LayoutCheck(self))
        if not args.disable_tqdm:
            self.remove_callback(ProgressCallback)
            self.add_callback(ShortProgress())

    # --- Prompts ---------------------------------------------------------------------------------------------------

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
        return self.args.method == "grpo_ma" and self.state.global_step < self.args.answer_warmup_steps

    @contextmanager
    def _generating(self, temperature: float):
        """An engine on the bare policy in eval mode, no gradients or checkpointing; all restored, also after errors."""
        training = self.model.training
        sampling = Sampling(temperature, self.top_k, self.top_p, self.min_p or 0.0, self.repetition_penalty)
        checkpointing = disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs)
        unwrapped = unwrap_model_for_generation(self.model_wrapped, self.accelerator)
        self.model.eval()
        try:
            with checkpointing, unwrapped as model, torch.no_grad(), self.accelerator.autocast(), merged_lora(model):
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
        ids = [json.loads(row["record"])["id"] for row in rows]
        with self._generating(self.temperature) as engine:
            trees = engine.grow(encoded, self._batch_policy, ids)
        self._rollout = Rollout.of([prompt or self.encoder.blank() for prompt in encoded], trees, leaves)
        self.forward.start(self._rollout)
        self._partition = partition(self._rollout, args.steps_per_generation, args.gradient_accumulation_steps)
        self._prefetch()
        gap = tuple(map(sum, zip((0.0, 0.0), *self._sampler_gap, strict=True)))
        self._sampler_gap = []
        self._log_sums(rollout_sums(self._rollout) | {"sampling/policy_gap": gap})
        warn_of_unclosed(self._metrics["train"].get("thought/unclosed_share", [0.0])[-1], args)
        return self._rollout.as_trl()

    def _prefetch(self) -> None:
        """Has the prompts of the next generation read while this one trains; the sampler's order is known."""
        steps = self.args.steps_per_generation * self.num_iterations // self.args.gradient_accumulation_steps
        following = self.state.global_step // steps + 1
        if following * steps < self.state.max_steps:
            indices = self._sampler.prompts_of(following, self.accelerator.process_index)
            self.encoder.prefetch([self.train_dataset[i] for i in indices])

    def _generate_and_score_completions(self, inputs):
        policy = self._batch_policy = METHODS[self.args.method].policy(self.args, self._warming_up)
        self._batch_split = self.args.split_objective and not self._warming_up  # holds for all passes over this batch
        inputs = self._batch_rows = inputs[:: self.args.leaves // policy.leaves]
        self._active_rows = None
        self.num_generations = policy.leaves
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self.num_generations = self.args.num_generations
        return self._add_credit(output)

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
        rollout, args = self._rollout, self.args
        rows = range(len(rollout.row_tree))
        rewards = self._row_rewards()
        credit = METHODS[args.method].credit(rewards, *self._row_groups(), args.thought_shrinkage)
        for name, value in credit.metrics.items():
            self._metrics["train"][name].append(value)
        mine = slice(self.accelerator.process_index * len(rows), (self.accelerator.process_index + 1) * len(rows))
        output["row_ids"] = torch.arange(len(rows))
        output["advantages"] = leaf = self._tensor(credit.leaf[mine])
        if credit.thought is not None:
            width = output["completion_ids"].size(1)
            is_thought = [rollout.per_token(row, lambda node: int(node.kind == "thought")) for row in rows]
            mask = self._tensor([row + [0] * (width - len(row)) for row in is_thought], torch.long)
            thought = self._tensor(credit.thought[mine])
            output |= {"thought_mask": mask, "thought_advantages": thought, "answer_advantages": leaf}
            if self._batch_policy.leaves > args.think_num:  # with M = 1 both are the leaf's: stock GRPO, bit for bit
                output["advantages"] = torch.where(mask.bool(), thought[:, None], leaf[:, None])
        self._replace_logged_advantages(credit.leaf)
        if verbose() and self.accelerator.is_main_process:
            print_trees(rollout, rewards[mine], self._tokenizer.decode)
        return output

    def _row_rewards(self) -> np.ndarray:
        """(N,) weighted sum of the reward functions that did not abstain; NaN where all did."""
        per_func = self._rewards_per_func.double()
        rewards = (per_func * self.reward_weights.to(per_func)).nansum(dim=1)
        return rewards.masked_fill(per_func.isnan().all(dim=1), torch.nan).cpu().numpy()

    def _row_groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(N,) prompt group, thought and closed flag of every row of all processes, by explicit ids."""
        rollout, rank, trees = self._rollout, self.accelerator.process_index, len(self._rollout.trees)
        offset = 0 if self.args.sync_prompt_across_ranks else rank * trees
        ids = [
            [offset + tree, (rank * trees + tree) * self.args.leaves + rollout.root(row), rollout.closed(row)]
            for row, tree in enumerate(rollout.row_tree)
        ]
        groups, thoughts, closed = self.accelerator.gather(self._tensor(ids, torch.long)).cpu().numpy().T
        if self.args.sync_prompt_across_ranks and self.accelerator.num_processes > 1:
            names = gather_object([tree.prompt_id for tree in rollout.trees])
            assert names == names[:trees] * self.accelerator.num_processes, f"processes hold different prompts: {names}"
        return groups, thoughts, closed.astype(bool)

    def _replace_logged_advantages(self, advantages: np.ndarray) -> None:
        """The completions table shows the leaf's own advantage instead of the one TRL computed."""
        logged = self._logs["advantages"]
        for _ in advantages:
            logged.pop()
        logged.extend(advantages.tolist())

    # --- Micro-batches and loss ------------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        generate_every = self.args.steps_per_generation * self.num_iterations
        if self._step % generate_every == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._micro_batches(self._generate_and_score_completions(generation_batch))
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _micro_batches(self, output: dict) -> list[dict]:
        """S micro-batches of whole trees (`_partition`), each with the token counts of its own optimiser step."""
        steps, window = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        batches = [take_rows(output, rows) for rows in self._partition]
        for start in range(0, steps, window):
            part = batches[start : start + window]
            local = torch.stack([token_counts(batch) for batch in part]).sum(dim=0)
            # TRL divides by num_items_in_batch * window / steps: it means a whole generation
            counts = self.accelerator.reduce(local, reduction="sum") * steps / window
            for batch in part:
                batch["num_items_in_batch"], batch["thought_items"], batch["answer_items"] = counts
        return batches

    def _compute_loss(self, model, inputs):
        """TRL's loss, or the sum of TRL's losses of the two parts, on one forward."""
        self._active_rows = inputs["row_ids"].tolist()
        self._memo = ()
        try:
            if self._batch_split:
                loss = sum(self._part_loss(model, inputs, name) for name in PARTS)
            else:
                loss = super()._compute_loss(model, inputs)
            if self._step % (self.args.steps_per_generation * self.num_iterations) < self.args.steps_per_generation:
                mask = inputs["completion_mask"] * inputs["tool_mask"]
                self._sampler_gap.append(sampler_gap(self._memo[0].detach(), inputs["sampling_per_token_logps"], mask))
        finally:
            self._memo = None
        return loss

    def _part_loss(self, model, inputs, name: str):
        """TRL's loss over the tokens of one part, with its advantages and its own token count."""
        mask = inputs["thought_mask"] if name == "thought" else 1 - inputs["thought_mask"]
        part = {
            "advantages": inputs[f"{name}_advantages"],
            "tool_mask": inputs["tool_mask"] * mask,
            "num_items_in_batch": inputs[f"{name}_items"],
        }
        with self._metrics_under(name):
            return super()._compute_loss(model, {**inputs, **part})

    @contextmanager
    def _metrics_under(self, prefix: str):
        """What TRL logs inside the block is filed under `prefix/`."""
        outer = self._metrics["train"]
        inner = self._metrics["train"] = defaultdict(list)
        try:
            yield
        finally:
            self._metrics["train"] = outer
            for name, values in inner.items():
                outer[f"{prefix}/{name}"].extend(values)

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        """TRL's log-prob pass on our rows: (B, T) log-probs, (B, T) entropies or None, and None (no router loss)."""
        if self._memo:
            return self._memo
        whole = self._active_rows is None  # the generation at once, for the old and the reference log-probs
        batches = self._partition if whole else [self._active_rows]
        back = torch.tensor([row for rows in batches for row in rows], device=input_ids.device).argsort()
        assert len(back) == input_ids.size(0), f"{len(back)} rows are active, {input_ids.size(0)} were asked for"
        bare = self.accelerator.unwrap_model(model)
        parts = []
        for rows in batches:
            here = rows if whole else slice(None)
            arguments = (rows, input_ids[here], attention_mask[here], logits_to_keep)
            with self.accelerator.autocast():
                self._check_sharing(bare, arguments)
                parts.append(self.forward(model, bare, *arguments))
        logps = torch.cat([logps for logps, _ in parts])[back]
        result = (logps, torch.cat([entropies for _, entropies in parts])[back] if compute_entropy else None, None)
        if self._memo is not None:
            self._memo = result
        return result

    def _check_sharing(self, bare, arguments) -> None:
        """Once, on the first rows: packed against dense. With dropout the two differ by design: then only reported."""
        if self._sharing_checked or not self.forward.sharing:
            return
        self._sharing_checked = True
        dropout = any(isinstance(m, torch.nn.Dropout) and m.p > 0 and m.training for m in bare.modules())
        gap = self.forward.check(bare, *arguments, enforce=not dropout)
        if self.accelerator.is_main_process:
            print(f"prefix sharing: packed and dense log-probs differ by at most {gap:.1e}", flush=True)

    # --- Evaluation and logs ---------------------------------------------------------------------------------------

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """Greedy completions of the evaluation rows, scored by each task's own metrics: what scripts/eval/eval.py does.

        Every process takes every n-th row; totals are over all rows, each once.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        with self._generating(temperature=0.0) as engine:
            predictions = predict(
                engine,
                self.module,
                [dataset[i] for i in range(rank, len(dataset), world)],
                self.tasks,
                max_new_tokens=self.args.max_completion_length,
                batch_size=self.args.per_device_eval_batch_size,
                thought_end=self.args.thought_end,
                on_bad_media=self.args.on_bad_media,
            )
        summary = summarise(gather_object(predictions), self.tasks)
        metrics = {
            f"{metric_key_prefix}_{task}/{name}": value
            for task, values in summary.items()
            for name, value in values.items()
        }
        super(GRPOTrainer, self).log(dict(metrics))  # TRL's own would empty the training metrics into this entry
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _log_sums(self, sums: dict[str, tuple[float, float]]) -> None:
        """Files sum / count over all processes under each name (one collective)."""
        totals = self.accelerator.reduce(self._tensor(list(sums.values()), torch.float64), reduction="sum").tolist()
        for name, (total, count) in zip(sums, totals, strict=True):
            self._metrics["train"][name].append(total / count if count else float("nan"))

    def _largest(self, count: int) -> int:
        """The largest `count` of all processes."""
        return int(self.accelerator.gather(self._tensor([count], torch.long)).max())

    def _tensor(self, values, dtype=torch.float32) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), device=self.accelerator.device).to(dtype)
