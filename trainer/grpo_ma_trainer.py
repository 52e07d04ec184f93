"""GRPOMATrainer: TRL's GRPOTrainer on rollout trees.

The steps of one generation: the sampler gives every process the prompts of whole trees; `_grow` grows the trees with
the forking engine; TRL pads the rows and calls the rewards; `_add_credit` turns the rewards of leaves into advantages
(`trainer/credit.py`); `_prepare_inputs` distributes whole trees over micro-batches; `_compute_loss` calls TRL's loss
once per part of the objective, on one forward pass (`trainer/objective.py`). Between these steps, all state of a
generation is one value, `generation` (`trainer/generation.py`).
"""

# B rows of a process, N rows of all processes, T completion tokens

from __future__ import annotations

import warnings

import torch
from trl import GRPOTrainer

from config.agents import parse_environment_args
from config.grpo_config import GRPOConfig
from model.registry import module_for
from task.errors import UserError
from task.rewards.own_rewards import checked_rewards
from task.rewards.router import TaskReward
from trainer.arguments import check_arguments, check_evaluation, prepare_module, prepare_weights
from trainer.credit import all_rows, leaf_values, loss_inputs
from trainer.engines.generating import generating
from trainer.engines.vllm.start import serving_of
from trainer.evaluation.in_training import evaluate_rows
from trainer.generation import Generation, Phase, records_of
from trainer.logprobs.forward import RowForward
from trainer.logprobs.micro_batches import partition
from trainer.logprobs.sampling_correction import SamplingCorrection, corrected
from trainer.logs.metrics import (
    filed_under,
    length_correlation,
    pool_all,
    replace_clipped_ratio,
    replace_last,
    rollout_sums,
    weigh_token_means,
)
from trainer.logs.outcome import Outcome
from trainer.logs.policy_gap import note_policy_gaps, say_dropout
from trainer.logs.progress import RolloutBar, show_short_progress, shows_bars, warn_of_useless_rollouts
from trainer.logs.run_log import RunLog
from trainer.logs.tree_log import TreeLog, parse_log_trees
from trainer.logs.verbose import print_generation, verbose
from trainer.methods import METHODS, Batch, Rows
from trainer.objective import micro_batches, part_inputs, part_weights, sequence_ratio_inputs, varies_within_rows
from trainer.policies.agent.build import policies_of_evaluation
from trainer.processes import Processes
from trainer.prompts import PromptEncoder
from trainer.run.best import greater_is_better
from trainer.run.checkpoints import SaveAtWindowEnd, WholeCheckpoints
from trainer.run.faults import GradientCheck, StepError, finite_loss, memory_sentence, out_of_memory
from trainer.run.layout import LayoutCheck
from trainer.run.stopping import StopOnSignal
from trainer.sampler import TreeSampler
from trainer.swapped import swapped
from trainer.zero_spread.roll_out import records_with_substitutes, roll_out, substitutes_of
from trainer.zero_spread.scoring import ScoredOnce


class GRPOMATrainer(WholeCheckpoints, ScoredOnce, GRPOTrainer):
    """GRPO on rollout trees; `args` names the method, which defines rollouts and credit (`trainer/methods.py`).

    Args:
        model: the policy, an instance (see `model.loading.load_policy`).
        reward_funcs: TRL reward callables; `task.rewards.router.task_rewards` routes to the tasks' own. Each is called
            with prompts and completions as plain text and the columns that docs/training.md lists.
        args: `config.grpo_config.GRPOConfig`.
        train_dataset: rows with the string columns `prompt` and `record` (`dataset.dataset_grpo.build_dataset`).
        eval_dataset: rows of the same form; evaluated with one greedy completion each and the tasks' own metrics.
        processing_class: the processor (or tokenizer) with which the module encodes.
        module: the model family's `VLMModule`; by default chosen by the model's config.
        tasks: task_type -> Task, for evaluation and for the environments of agents.
        **kwargs: passed to `trl.GRPOTrainer` (peft_config, callbacks, optimizers, ...).

    Attributes:
        generation: the `Generation` being grown, scored or trained on; None before the first.
        method: the `Method` of the run.
        correction: the `SamplingCorrection` of the run; None where the trainer's own model samples.
        memory: state that a method keeps between generations (JSON), see `trainer.methods.Batch`.
        processes: the collectives of the run.
        forward: the log-prob pass over rows.
        encoder: encodes the prompts.
        sampler: draws the prompts; None before training starts.
        rollout_bar: the progress bar of sampling.

    Raises:
        UserError: invalid data or settings, one sentence each.
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
        check_evaluation(args, eval_dataset)
        args.greater_is_better = greater_is_better(args.metric_for_best_model, args.greater_is_better, tasks or {})
        self.method = METHODS[args.method]
        self.module = module or module_for(model.config)
        self.tasks = tasks or {}
        prepare_module(self.module, processing_class, args, self.tasks)
        self.memory: dict = {}
        self.generation: Generation | None = None
        self.correction = SamplingCorrection.of(args)
        self.sampler: TreeSampler | None = None
        self.rollout_bar = RolloutBar(shown=shows_bars(args))
        bare = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.forward = RowForward(
            self.module,
            bare,
            args.prefix_sharing,
            args.max_slots,
            largest=lambda count: self.processes.largest(count),
            processes=args.world_size,
        )
        self.encoder = PromptEncoder(
            self.module,
            args.max_prompt_length,
            args.on_long_prompt,
            args.on_bad_media,
            max_slots=args.max_slots if self.forward.sharing else None,
            completion=args.max_completion_length,
        )
        with warnings.catch_warnings(), swapped(args, use_vllm=False):  # TRL would start an engine of its own
            warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
            super().__init__(
                model=model,
                reward_funcs=checked_rewards(reward_funcs, args.reward_timeout),
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                rollout_func=self._grow,
                **kwargs,
            )
        self.processes = Processes(self.accelerator)
        prepare_weights(self.model, args)
        say_dropout(self)
        self.eos_token_ids = self.module.eos_token_ids(self.processing_class, stated=self.eos_token_ids)
        self.serving = serving_of(self)
        every = parse_log_trees(args.log_trees)
        logs_trees, opened = every and self.processes.rank == 0, self.module.opened_thought
        self.tree_log = TreeLog(args.output_dir, every, self.tasks, opened) if logs_trees else None
        self.stopping = StopOnSignal(self)
        self.outcome = Outcome(self)
        for callback in (LayoutCheck(self), GradientCheck(self), self.outcome, self.stopping, SaveAtWindowEnd()):
            self.add_callback(callback)
        show_short_progress(self)
        self.add_callback(RunLog())

    # --- A generation: prompts, trees, rewards, advantages ---------------------------------------------------------

    def _get_train_sampler(self, dataset=None):
        self.sampler = sampler = TreeSampler(
            num_prompts=len(dataset if dataset is not None else self.train_dataset),
            prompts_per_rank=self.args.prompts_per_generation,
            leaves=self.args.leaves,
            ranks=self.accelerator.num_processes,
            repeats=self.args.steps_per_generation * self.num_iterations,
            sync=self.args.sync_prompt_across_ranks,
            shuffle=self.shuffle_dataset,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
        )
        if sampler.unused and self.accelerator.is_main_process:
            print(f"{sampler.unused} of {sampler.num_prompts} prompts are unused per epoch, different ones each time")
        return sampler

    def _generate_and_score_completions(self, inputs):
        args = self.args
        warm_up_leaves = self.method.warm_up_leaves(args, self.state.global_step)
        leaves, warming_up = warm_up_leaves or args.leaves, warm_up_leaves is not None
        rows = inputs[:: args.leaves // leaves]  # the sampler repeats each prompt `args.leaves` times in a row
        records, substitutes = records_of(rows, leaves), substitutes_of(self)
        batch = Batch(
            args,
            records_with_substitutes(self, records, substitutes),
            self.tasks,
            tokenizer=self._tokenizer,
            module=self.module,
            warming_up=warming_up,
            memory=self.memory,
        )
        self.generation = Generation(
            rows,
            records,
            policy=self.method.policy(batch),
            two_terms=self.method.two_terms(args) and not warming_up,
            substitutes=substitutes,
        )
        # Truncated completions are masked by `loss_inputs`, per node; TRL would mask whole rows.
        with swapped(self, num_generations=self.generation.policy.leaves, mask_truncated_completions=False):
            output = super()._generate_and_score_completions(rows)
        if not self.method.ends_with_eos:
            replace_clipped_ratio(self._metrics["train"])
        return self._add_credit(output)

    def _grow(self, prompts, trainer) -> dict[str, list]:
        """TRL's `rollout_func`: grows one tree per group of `policy.leaves` equal rows."""
        generation, args = self.generation, self.args
        policy = generation.policy
        assert len(prompts) == len(generation.rows)
        with self._generating(self.temperature) as engine:
            rolled = roll_out(self, engine)
        rollout = rolled.training.rollout
        self.forward.start(rollout)
        batches = partition(rollout, args.steps_per_generation, args.gradient_accumulation_steps)
        generation.grown(rolled.training, batches, [slot.row for slot in rolled.slots], rolled.scores)
        self._prefetch()
        sums = rollout_sums(rollout) | rolled.sums | policy.metrics(rollout.trees)
        logged = self.processes.quotients(sums)
        self.record_metrics(logged)
        policy.remember(logged)
        warn_of_useless_rollouts(logged, args)
        return rollout.as_trl()

    def _generate(self, prompts):
        prompt_ids, completion_ids, mask, _, *rest = super()._generate(prompts)
        prompts[:] = [row["prompt"] for row in self.generation.rows]  # TRL's own list; some were replaced
        # TRL decodes without special tokens, and a tokenizer may list <answer> as one.
        texts = self.module.completion_texts(completion_ids, self.eos_token_ids)
        return prompt_ids, completion_ids, mask, texts, *rest

    def _generating(self, temperature: float):
        """The context in which the engine samples; temperature 0 is greedy."""
        return generating(self, temperature)

    def _prefetch(self) -> None:
        """Starts loading the prompts of the next generation, which the sampler already knows, while this one trains."""
        following = self.state.global_step // self.args.window + 1
        if following * self.args.window < self.state.max_steps:
            indices = self.sampler.prompts_of(following, self.accelerator.process_index)
            self.encoder.prefetch([self.train_dataset[i] for i in indices])

    def _add_credit(self, output: dict) -> dict:
        """TRL's output with the method's advantages in place of TRL's, the parts of the objective and the row ids."""
        generation, rollout, training = self.generation, self.generation.rollout, self.generation.training
        rows = self._all_rows()
        credit = self.method.credit(rows, self.args)
        correlation = length_correlation(credit.leaf, rows.lengths)
        self.record_metrics(credit.metrics | {"advantages/length_correlation": correlation})
        replace_last(self._logs["advantages"], credit.leaf[rows.trained].tolist())
        mine = rows.trained_on(self.processes.rank)
        own, rewards = credit.weighted(mine, training.weights), rows.rewards[mine]
        output |= loss_inputs(output, generation, own, rewards, self.method, self.args, self.eos_token_ids)
        sums = generation.policy.reward_sums(rollout.trees, leaf_values(rollout, rewards))
        self.record_metrics(self.processes.quotients(sums))
        if self.tree_log is not None and self.tree_log.due(self.state.global_step):
            per_func = dict(zip(self.reward_func_names, generation.rewards[mine].T.tolist(), strict=True))
            scores = (per_func, rewards, output["advantages"].tolist(), self._tokenizer.decode)
            forked_by = generation.policy.forked_by
            self.tree_log.write(self.state.global_step, rollout, generation.records, *scores, forked_by)
        if verbose() and self.accelerator.is_main_process:
            drawn = self.sampler.drawn(self.state.global_step // self.args.window)
            print_generation(rollout, rewards, self._tokenizer.decode, drawn, rows, credit)
        return output

    def _all_rows(self) -> Rows:
        is_task_reward = [isinstance(function, TaskReward) for function in self.reward_funcs]
        spanning, gamma = self.args.sync_prompt_across_ranks, self.method.discount(self.args)
        return all_rows(self.generation, self.processes, spanning, self.reward_weights, is_task_reward, gamma)

    # --- Training on it --------------------------------------------------------------------------------------------

    def training_step(self, model, inputs, num_items_in_batch=None):
        try:
            return super().training_step(model, inputs, num_items_in_batch)
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            sentence = memory_sentence(error, self.generation, self.args.leaves, self.forward.slots)
            raise StepError(sentence) from error

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        args = self.args
        generate_every = args.steps_per_generation * self.num_iterations
        if self._buffered_inputs is None:  # a run may resume mid-generation, from the last step of a shorter run
            self._step = self.state.global_step * args.gradient_accumulation_steps % generate_every
        if self._step % generate_every == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._micro_batches(self._generate_and_score_completions(generation_batch))
        return self._buffered_inputs[self._step % args.steps_per_generation]

    def _micro_batches(self, output: dict) -> list[dict]:
        accumulation = self.args.gradient_accumulation_steps
        return micro_batches(output, self.generation.partition, accumulation, self.processes.sums)

    def _compute_loss(self, model, inputs):
        """TRL's loss, or its sum over the two parts, on one forward pass; 0 if a non-finite loss is skipped."""
        trl_loss, varies = super()._compute_loss, varies_within_rows(inputs, self.args.shared_token_weight)
        with self.generation.training_on(inputs["row_ids"].tolist()):
            logps = self._row_logps(model, inputs).detach()
            old = inputs.get("old_per_token_logps", logps)
            note_policy_gaps(self, old, inputs, self._step)
            inputs = corrected(inputs, old, self.correction)
            if self.generation.two_terms:
                loss = sum(w * self._part_loss(trl_loss, model, inputs, part) for part, w in part_weights(self.args))
            elif self.importance_sampling_level == "sequence" and varies:
                with swapped(self, importance_sampling_level="token"):
                    loss = trl_loss(model, sequence_ratio_inputs(inputs, logps))
            else:
                loss = trl_loss(model, inputs)
            if not self.generation.two_terms:
                weigh_token_means(self._metrics["train"], inputs["token_counts"]["all"])
        return finite_loss(self, loss, model)

    def _part_loss(self, trl_loss, model, inputs, part: str):
        with filed_under(part, self._metrics) as logged:
            loss = trl_loss(model, part_inputs(inputs, part))
            weigh_token_means(logged, inputs["token_counts"][part])
        return loss

    def _row_logps(self, model, inputs) -> torch.Tensor:
        """(B, T) log-probs of the micro-batch; with entropies, since its loss will get this same, cached pass."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].size(1)
        return self._get_per_token_logps_and_entropies(model, ids, mask, width, compute_entropy=True)[0]

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        """TRL's log-prob pass on our rows: (B, T) log-probs, (B, T) entropies or None, and None (no router loss).

        In training, the current micro-batch, computed once for all parts of its objective; otherwise, for the old and
        the reference log-probs, the whole generation, one micro-batch after the other.
        """
        generation, training = self.generation, self.generation.phase is Phase.TRAINING
        if generation.cached_logps is not None:  # the arguments are those of the micro-batch being trained on
            return generation.cached_logps
        passes = [generation.current_rows] if training else generation.partition
        order = [row for rows in passes for row in rows]
        assert len(order) == len(input_ids), f"{len(order)} rows in the passes, but {len(input_ids)} in the inputs"
        restore = torch.tensor(order, device=input_ids.device).argsort()
        bare, parts = self.accelerator.unwrap_model(model), []
        for rows in passes:
            generation.current_rows, selected = rows, slice(None) if training else rows
            arguments = (rows, input_ids[selected], attention_mask[selected], logits_to_keep)
            with self.accelerator.autocast():
                self.forward.check_once(bare, *arguments, shown=self.accelerator.is_main_process)
                parts.append(self.forward(model, bare, *arguments))
        logps = torch.cat([logps for logps, _ in parts])[restore]
        sampled = generation.sampled(order, logits_to_keep, logps.device)[restore]
        logps = torch.where(sampled, logps, 0.0)  # TRL takes exp of differences before it masks
        result = (logps, torch.cat([entropies for _, entropies in parts])[restore] if compute_entropy else None, None)
        if training:
            generation.cached_logps = result
        return result

    def record_metrics(self, metrics: dict[str, float]) -> None:
        """Adds values to the training metrics; `log` pools all values added since the last call."""
        self.outcome.add(metrics)
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)

    def log(self, logs, start_time=None):
        pool_all(self._metrics["train"])
        super().log(logs, start_time)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """Evaluates greedy completions with each task's own metrics, as scripts/eval/eval.py does.

        Each of n processes takes every n-th row; metrics are over all rows, each counted once.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise UserError("an evaluation was requested (eval_on_start), but there is no eval_dataset: give one")
        length, settings = self.args.max_completion_length, parse_environment_args(self.args.environment_args)
        agents = policies_of_evaluation(self.args, settings, self.tasks, self._tokenizer, self.module, length=length)
        found = evaluate_rows(self, dataset, agents if self.method.acts else None)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        super(GRPOTrainer, self).log(dict(metrics))  # TRL's log would flush the training metrics into this entry
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics
