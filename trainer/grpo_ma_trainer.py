"""GRPOMATrainer: TRL's GRPOTrainer on rollout trees.

What happens in one generation, top to bottom: the sampler hands every process whole trees; `_grow` grows them with the
forking engine; TRL pads the rows and asks the rewards; `_add_credit` turns leaf rewards into advantages
(`trainer/generation.py`); `_micro_batches` takes whole trees; `_compute_loss` is TRL's loss, called once a part of the
objective on one forward (`trainer/objective.py`).
"""

from __future__ import annotations

import warnings

from accelerate.utils import gather_object
from transformers.trainer_callback import ProgressCallback
from trl import GRPOTrainer

from config.grpo_config import GRPOConfig
from config.methods.tree_grpo import parse_environment_args
from model.registry import module_for
from task.errors import UserError
from task.rewards.router import checked_rewards
from trainer.arguments import check_arguments, check_thought_end, complete_reference
from trainer.evaluation.bar import EvaluationBar
from trainer.evaluation.predict import predict
from trainer.evaluation.summary import summarise
from trainer.generation import TreeGeneration
from trainer.logprobs.forward import RowForward
from trainer.logs.progress import LayoutCheck, RolloutBar, ShortProgress
from trainer.logs.run_log import RunLog
from trainer.logs.tree_log import TreeLog, parse_log_trees
from trainer.methods import METHODS
from trainer.objective import TreeObjective
from trainer.policies.agent.build import policies_of_evaluation
from trainer.prompts import PromptEncoder
from trainer.rollout import Rollout
from trainer.run.checkpoints import SaveAtWindowEnd, WholeCheckpoints
from trainer.run.faults import GradientCheck, StepFaults
from trainer.run.stopping import StopOnSignal


class GRPOMATrainer(WholeCheckpoints, TreeGeneration, StepFaults, TreeObjective, GRPOTrainer):
    """GRPO on rollout trees, grown and credited by the method that `args` names (`trainer/methods.py`).

    Args:
        model: the policy, an instance (see `model.loading.load_policy`).
        reward_funcs: TRL reward callables; `task.rewards.router.task_rewards` routes to the tasks' own. Each is called
            with prompts and completions as plain texts, `record` (JSON string), `image_sizes` and `processed_sizes`.
        args: `config.grpo_config.GRPOConfig`.
        train_dataset: rows with the string columns `prompt` and `record` (`dataset.dataset_grpo.build_dataset`).
        eval_dataset: rows of the same form; evaluated greedily, one completion each, with the tasks' own metrics.
        processing_class: the processor (or tokenizer) the module encodes with.
        module: the model family's `VLMModule`; found from the model's config if not given.
        tasks: task_type -> Task, for evaluation and for the environments of agents.
        **kwargs: passed to `trl.GRPOTrainer` (peft_config, callbacks, optimizers, ...).

    Raises:
        UserError: data or settings that cannot work, one sentence each.
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
        check_thought_end(tasks or {}, args.thought_end)
        self.module = module or module_for(model.config)
        self.module.processor = processing_class
        self.tasks = tasks or {}
        self.memory: dict = {}
        self._rollout: Rollout | None = None
        self._partition: list[list[int]] = []  # rows of each micro-batch
        self._active_rows: list[int] | None = None
        self._memo = None
        self._sampler_gap: list[tuple[float, float]] = []  # of the previous generation, logged with the next
        self._sharing_checked = False
        self._rollout_bar = RolloutBar(shown=args.process_index == 0 and not args.disable_tqdm)
        bare = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.forward = RowForward(
            self.module, bare, args.prefix_sharing, args.max_slots, largest=self._largest, processes=args.world_size
        )
        self.encoder = PromptEncoder(
            self.module,
            args.max_prompt_length,
            args.on_long_prompt,
            args.on_bad_media,
            max_slots=args.max_slots if self.forward.sharing else None,
            completion=args.max_completion_length,
        )
        with warnings.catch_warnings():
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
        complete_reference(self.model)
        self.eos_token_ids = self.module.eos_token_ids(self.processing_class, stated=self.eos_token_ids)
        every = parse_log_trees(args.log_trees)
        self.tree_log = TreeLog(args.output_dir, every) if every and self.accelerator.is_main_process else None
        self.stopping = StopOnSignal(self)
        for callback in (LayoutCheck(self), GradientCheck(self), self.stopping, SaveAtWindowEnd()):
            self.add_callback(callback)
        if not args.disable_tqdm:
            self.remove_callback(ProgressCallback)
            self.add_callback(ShortProgress())
        self.add_callback(RunLog())

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """Greedy completions of the evaluation rows, scored by each task's own metrics: what scripts/eval/eval.py does.

        Every process takes every n-th row; totals are over all rows, each once.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise UserError("an evaluation was asked for (eval_on_start), but there is no eval_dataset: give one")
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        rows = [dataset[i] for i in range(rank, len(dataset), world)]
        shown = self.accelerator.is_main_process and not self.args.disable_tqdm
        agents = policies_of_evaluation(
            self.args,
            parse_environment_args(self.args.environment_args),
            self.tasks,
            self._tokenizer,
            self.module,
            length=self.args.max_completion_length,
        )
        with self._generating(temperature=0.0) as engine, EvaluationBar(len(rows), shown=shown) as bar:
            predictions = predict(
                engine,
                self.module,
                rows,
                self.tasks,
                max_new_tokens=self.args.max_completion_length,
                batch_size=self.args.per_device_eval_batch_size,
                on_bad_media=self.args.on_bad_media,
                policy_of=agents if METHODS[self.args.method].acts else None,
                progress=bar,
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
