"""Evaluates a model, an adapter or a run's checkpoints: one prediction per record, metrics by task type.

    python scripts/eval/eval.py --adapter_path runs/demo --dataset metadata/demo/trajectory_test.yaml \\
        --output_dir runs/demo/eval

A checkpoint folder contains the adapter, the processor and the name of the base model, so `--adapter_path` alone is
enough; `--model_name_or_path` sets another base (or, without an adapter, the model to evaluate). The processor comes
from the checkpoint, so pictures are scaled as in training; `--max_pixels` and `--min_pixels` override it. Under
`torchrun --nproc_per_node N` (or `accelerate launch`) the processes share the records.

An interrupted evaluation continues when the same command is started again: finished predictions are kept, and the
others, sampled ones too, are the same as without the interruption. Records with status load_error, oom or tool_error
are retried.

Written to --output_dir:
    settings.json      what was evaluated and how, with its fingerprint
    predictions.jsonl  one line per record, in the order of the data: id, question_type, completion, prediction
                       (parsed, in the task's frame), answer (original frame), sol (task's frame), image_size,
                       processed_size, format, accuracy, status (ok, parse_fail, length, load_error, oom, tool_error),
                       tokens, error, record; with --num_samples above 1 also samples, the columns of each completion
    metrics.json       {"metrics": {task_type: {...}}, "intervals": {task_type: {metric: [low, high]}}, "counts": {...},
                       "settings": {...}}; intervals are 95% over records
With --checkpoints, each checkpoint gets a folder checkpoint-STEP with these files, and checkpoints.json has the metrics
by step. A checkpoint whose adapter cannot be used, such as one saved before anything was learnt, is reported with the
reason; the others are evaluated.

A user's mistake ends with a one-sentence message and exit status 2.
"""

import argparse
import copy
import errno
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()
warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # peft's name for checkpointing
sys.path.insert(0, str(ROOT / "scripts" / "eval"))

from checkpoint_table import curves, metrics_table, selected_checkpoints, write_by_step
from eval_engine import evaluation_engine
from eval_processes import Processes
from eval_settings import fingerprinted_settings, parse_arguments
from prediction_files import PredictionFiles, line_of, write_json

from task.errors import UserError


def main(argv: list[str] | None = None) -> int:
    processes = None
    try:
        args = parse_arguments(__doc__, argv)
        processes = Processes()
        args.processes = processes.count
        results = run(args, processes)
    except (UserError, OSError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            error = (
                f"--output_dir {args.output_dir}: {error.strerror}; free space; the same command continues from here."
            )
        which = f" (process {processes.index})" if processes is not None and processes.count > 1 else ""
        print(f"eval.py{which}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("eval.py: interrupted; the same command continues from here.", file=sys.stderr)
        return 130
    if processes.first:
        print(metrics_table(results))
        if len(results) > 1:
            print(curves(results))
        print(f"written to {args.output_dir}")
    processes.end()
    return 0


def run(args: argparse.Namespace, processes: Processes) -> dict[int | None, dict]:
    """{step of the checkpoint (None without --checkpoints): its metrics.json, or {"fault": why it has none}}.

    In all processes but the first, {} replaces metrics.json. Raises UserError if no checkpoint could be evaluated.
    """
    from config.console import quiet_libraries
    from dataset.dataset_grpo import build_dataset
    from dataset.manifest import print_sources, read_manifests
    from model.loading import AdapterError
    from task.task_loader import load_tasks

    quiet_libraries()
    checkpoints = selected_checkpoints(args)
    args.coordinate_frame = frame_of(args, checkpoints)
    tasks = load_tasks(thought_end=args.thought_end, coordinate_frame=args.coordinate_frame)
    if processes.first:
        print_sources(read_manifests(args.dataset, args.image_root))
    rows = build_dataset(
        args.dataset,
        tasks,
        seed=args.seed,
        image_root=args.image_root,
        on_bad_media=args.on_bad_media,
    )
    rows = rows.select(range(min(args.limit, len(rows)))) if args.limit else rows
    results = {}
    for step, folder in checkpoints.items():
        here = copy.copy(args)
        if step is not None:
            setattr(here, "adapter_path" if args.adapter_path else "model_name_or_path", folder)
            here.output_dir = str(Path(args.output_dir) / f"checkpoint-{step}")
        try:
            results[step] = evaluate(here, rows, tasks, processes)
        except AdapterError as error:
            if step is None:
                raise
            results[step] = {"fault": str(error)}
    if all("fault" in result for result in results.values()):
        raise UserError(f"no checkpoint can be evaluated; the last one: {results[step]['fault']}")
    if processes.first and args.checkpoints:
        write_by_step(Path(args.output_dir), results)
    return results


def frame_of(args: argparse.Namespace, checkpoints: dict) -> str | None:
    """The frame of the model's coordinates, from the first checkpoint whose base can be read; None: not known."""
    from model.loading import coordinate_frame_of

    for folder in checkpoints.values():
        name, adapter = args.model_name_or_path, args.adapter_path
        if folder is not None and adapter is None:
            name = folder
        try:
            return coordinate_frame_of(name, folder or adapter, args.coordinate_frame)
        except UserError:
            continue  # loading it will say why
    return args.coordinate_frame or "processed"


def evaluate(args: argparse.Namespace, rows, tasks, processes: Processes) -> dict:
    """Predicts, scores and writes everything; the first process returns the content of metrics.json, the others {}.

    An AdapterError is raised in all processes, including those that had nothing to predict.
    """
    from model.loading import AdapterError, adapter_base, adapter_settings
    from model.registry import module_for
    from trainer.evaluation.item_metrics import UNSCORED
    from trainer.evaluation.summary import intervals, summarise

    if not Path(args.output_dir).exists():  # a wrong path creates no folder
        if args.adapter_path:
            adapter_settings(args.adapter_path)
        module_for(args.model_name_or_path or adapter_base(args.adapter_path))
    settings = fingerprinted_settings(args, rows, tasks)
    files = PredictionFiles(Path(args.output_dir))
    together(processes, lambda: files.prepare(settings, args.overwrite))
    records = range(processes.index, len(rows), processes.count)
    ids = ids_of(rows)
    done = {name for name, item in files.read().items() if item["status"] not in UNSCORED}
    seconds, fault = 0.0, None
    if not all(ids[i] in done for i in records):
        try:
            seconds = predict_into(files, args, rows.select(records), tasks, done, processes)
        except AdapterError as error:
            fault = str(error)
    seconds, faults = zip(*processes.gather((seconds, fault)), strict=True)
    if any(faults):
        raise AdapterError(next(filter(None, faults)))
    if not processes.first:
        return {}
    predictions = files.merge(ids)
    statuses = [sample["status"] for p in predictions for sample in p.get("samples") or [p]]
    counts = {"items": len(predictions)} | {status: statuses.count(status) for status in sorted(set(statuses))}
    counts |= {"generated_tokens": sum(p["tokens"] for p in predictions), "seconds": round(max(seconds), 2)}
    metrics = summarise(predictions, tasks, args.pass_threshold)
    spread = intervals(predictions, tasks, metrics, args.pass_threshold)
    result = {"metrics": metrics, "intervals": spread, "counts": counts, "settings": settings}
    write_json(files.folder / "metrics.json", result)
    return result


def predict_into(files: PredictionFiles, args, rows, tasks, done: set[str], processes: Processes) -> float:
    """Appends the predictions of this process's rows as they are scored; returns the seconds taken."""
    from config.agents import parse_environment_args
    from trainer.evaluation.bar import EvaluationBar
    from trainer.evaluation.predict import predict_batches
    from trainer.policies.agent.build import policies_of_evaluation

    settings = parse_environment_args(args.environment_args)
    finished = sum(name in done for name in ids_of(rows))
    bar = EvaluationBar(len(rows), finished, shown=processes.first and sys.stderr.isatty())
    with evaluation_engine(args, processes) as (engine, module), bar, files.append_to(processes.index) as out:
        agents = policies_of_evaluation(args, settings, tasks, engine.tokenizer, module, args.max_new_tokens)
        batches = predict_batches(
            engine,
            module,
            rows,
            tasks,
            max_new_tokens=args.max_new_tokens,
            batch_size=args.batch_size,
            on_bad_media=args.on_bad_media,
            num_samples=args.num_samples,
            seed=args.seed if args.temperature > 0 else None,
            policy_of=agents,
            done=done,
            progress=bar,
        )
        for batch in batches:
            out.write("".join(map(line_of, batch.values())))
            out.flush()
    return bar.seconds


def together(processes: Processes, action) -> None:
    """Runs `action` in the first process while the others wait; a UserError is raised in all processes."""
    fault = None
    if processes.first:
        try:
            action()
        except UserError as error:
            fault = str(error)
    fault = processes.gather(fault)[0]
    if fault is not None:
        raise UserError(fault)


def ids_of(rows) -> list[str]:
    from dataset.dataset_grpo import read_row

    return [read_row(row)["id"] for row in rows]


if __name__ == "__main__":
    sys.exit(main())
