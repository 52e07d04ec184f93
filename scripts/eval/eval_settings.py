"""The arguments of eval.py, and the fingerprint that identifies an evaluation."""

import argparse
import hashlib
import importlib.util
import json
from pathlib import Path

from _root import locate

from config.evaluated import add_evaluated, check_least, locate_evaluated
from task.errors import UserError
from task.own_tasks import add_task_dir
from trainer.engines.vllm import INSTALL

LARGE_FILE = 64 * 2**20  # larger weight files enter the fingerprint by size and modification time, not by content
# Settings that affect where and how fast predictions are made, but not the predictions.
NOT_SETTINGS = ("output_dir", "overwrite", "on_bad_media", "checkpoints", "batch_size", "processes", "task_dir")
NOT_SETTINGS += ("vllm_gpu_memory_utilization",)
WRITTEN = ("settings.json", "metrics.json", "checkpoints.json")  # by eval.py, possibly into the adapter's folder
LEAST = {"batch_size": 1, "num_samples": 1, "max_turns": 0, "max_turn_length": 1, "max_observation_length": 32}
LEAST |= {"tool_timeout": 0.001}


def parse_arguments(doc: str, argv: list[str] | None) -> argparse.Namespace:
    """eval.py's arguments, checked; `processes` is set by the caller. UserError for invalid ones."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--model_name_or_path", help="model to evaluate, or base of the adapter (default: the base the adapter names)")
    add("--adapter_path", help="LoRA checkpoint folder")
    add(
        "--checkpoints",
        nargs="+",
        metavar="all|STEP",
        help="evaluate the checkpoint-STEP folders in --adapter_path (or in --model_name_or_path, for whole models)",
    )
    add_evaluated(parser)
    add("--output_dir", required=True, help="folder for predictions.jsonl and metrics.json")
    add("--overwrite", action="store_true", help="start anew, replacing any evaluation in output_dir")
    add("--num_samples", type=int, default=1, help="completions per record, for pass@k and mean@n (default 1)")
    add("--pass_threshold", type=float, default=1.0, help="lowest accuracy with which a completion passes (default 1)")
    add("--seed", type=int, default=42, help="seed of the sampling and of random:N selections (default 42)")
    add("--batch_size", type=int, default=16, help="completions decoded together (default 16); halved if out of memory")
    add("--environment_args", help="agent tasks: JSON object of settings for environments, such as the retriever")
    add("--max_turns", type=int, default=3, help="agent tasks: turns with an observation (default 3)")
    add("--max_turn_length", type=int, default=500, help="agent tasks: tokens per turn (default 500)")
    add("--max_observation_length", type=int, default=500, help="agent tasks: tokens per observation (default 500)")
    add("--tool_timeout", type=float, default=30.0, help="agent tasks: seconds allowed for a turn's calls (default 30)")
    add("--dtype", choices=("auto", "float32", "bfloat16"), help="default: bfloat16 on a GPU, float32 on a CPU")
    add("--engine", choices=("own", "vllm"), default="own", help="samples the completions: own (default), or vllm")
    add(
        "--vllm_gpu_memory_utilization",
        type=float,
        help="with --engine vllm: share of the device's memory for its weights, keys and values (default 0.9)",
    )
    add("--attn_implementation", default="sdpa", help="sdpa (default), eager, flash_attention_2")
    add("--on_bad_media", choices=("error", "skip"), default="error", help="skip: count as load_error and continue")
    add_task_dir(parser)
    args, unknown = parser.parse_known_args(argv)
    _refuse_unknown(parser, unknown)
    locate_evaluated(args, locate)
    _check(args)
    if args.dtype is None:
        import torch

        args.dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    return args


def _refuse_unknown(parser: argparse.ArgumentParser, unknown: list[str]) -> None:
    """Ends the command if there are unknown arguments; UserError for a flag of training's vLLM."""
    for flag in unknown:
        if flag.startswith(("--use_vllm", "--vllm_")):
            raise UserError(
                f"{flag.partition('=')[0]} is a flag of training: an evaluation starts vLLM in its own processes, each "
                "with an engine of its own, and uses no server; give --engine vllm in its place."
            )
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")


def _check(args: argparse.Namespace) -> None:
    check_least(args, LEAST)
    if args.num_samples > 1 and args.temperature == 0:
        raise UserError(
            f"--num_samples {args.num_samples} needs --temperature above 0: greedy completions are all the same."
        )
    if args.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise UserError(f"--engine vllm, but vLLM is not installed here: {INSTALL}.")
    memory = args.vllm_gpu_memory_utilization
    if memory is not None and args.engine != "vllm":
        raise UserError(f"--vllm_gpu_memory_utilization {memory} needs --engine vllm.")
    if memory is not None and not 0 < memory < 1:
        raise UserError(f"--vllm_gpu_memory_utilization {memory}: it must be above 0 and below 1.")
    if args.model_name_or_path is None and args.adapter_path is None:
        raise UserError("nothing to evaluate: give --model_name_or_path, --adapter_path, or both.")
    for step in args.checkpoints or ():
        if step != "all" and not step.isdecimal():
            raise UserError(f"--checkpoints {step}: give all, or the numbers of steps.")


def fingerprinted_settings(args: argparse.Namespace, rows, tasks: dict) -> dict:
    """The settings that predictions depend on, with a fingerprint: sha256 over settings, files and rows.

    The files are those of the model (or of the base that the adapter names), of the adapter, and of the tasks.

    For sampled completions, batch_size and the number of processes are included: they determine which records share a
    batch, and thereby the random numbers.
    """
    kept = {name: value for name, value in vars(args).items() if name not in NOT_SETTINGS}
    if args.temperature > 0:
        kept |= {"batch_size": args.batch_size, "processes": args.processes}
    types = sorted({json.loads(record)["question_type"] for record in rows["record"]})
    kept["task_files"] = {name: hashlib.sha256(tasks[name].path.read_bytes()).hexdigest()[:16] for name in types}
    # The threshold affects only the metrics, not the predictions that the fingerprint identifies.
    digest = hashlib.sha256(json.dumps(kept | {"pass_threshold": None}, sort_keys=True).encode())
    for folder in (args.model_name_or_path or _base_of(args.adapter_path), args.adapter_path):
        for file in sorted(Path(folder).glob("*")) if folder and Path(folder).is_dir() else ():
            if file.suffix in (".safetensors", ".bin", ".json", ".jinja") and file.name not in WRITTEN:
                stat = file.stat()
                large = stat.st_size > LARGE_FILE
                content = f"{stat.st_size} {stat.st_mtime_ns}".encode() if large else file.read_bytes()
                digest.update(file.name.encode() + hashlib.sha256(content).digest())
    for record in rows["record"]:
        digest.update(record.encode("utf-8", "surrogatepass"))
    return kept | {"fingerprint": digest.hexdigest()}


def _base_of(adapter: str) -> str | None:
    """The base model that an adapter names; None if it cannot be read, which loading will report."""
    try:
        return json.loads((Path(adapter) / "adapter_config.json").read_text(encoding="utf-8"))[
            "base_model_name_or_path"
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
