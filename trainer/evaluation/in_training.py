"""Evaluation during training: the rows are shared out to the processes, the metrics are over all of them."""

from __future__ import annotations

import math

from trainer.evaluation.bar import EvaluationBar
from trainer.evaluation.predict import PolicyOf, predict
from trainer.evaluation.summary import summarise


def evaluate_rows(trainer, dataset, policy_of: PolicyOf | None) -> dict[str, float]:
    """Greedy completions of a dataset, scored by each task's own metrics: {"TASK/METRIC": value}, finite ones only.

    Args:
        trainer: a GRPOMATrainer; each of its processes takes every n-th row.
        policy_of: grows the rows of tasks with environments, see `predict`.
    """
    processes, args = trainer.processes, trainer.args
    rows = [dataset[i] for i in range(processes.rank, len(dataset), processes.count)]
    shown = processes.rank == 0 and not args.disable_tqdm
    with trainer._generating(temperature=0.0) as engine, EvaluationBar(len(rows), shown=shown) as bar:
        predictions = predict(
            engine,
            trainer.module,
            rows,
            trainer.tasks,
            max_new_tokens=args.max_completion_length,
            batch_size=args.per_device_eval_batch_size,
            on_bad_media=args.on_bad_media,
            policy_of=policy_of,
            progress=bar,
        )
    summary = summarise(processes.objects(predictions), trainer.tasks)
    named = {f"{task}/{name}": value for task, values in summary.items() for name, value in values.items()}
    return {name: value for name, value in named.items() if value is not None and math.isfinite(value)}
