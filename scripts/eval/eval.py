"""Evaluates a model, or an adapter, on manifests: one prediction a record, metrics by task type.

    python scripts/eval/eval.py --adapter_path runs/demo --dataset metadata/demo/trajectory_test.yaml \\
        --output_dir runs/demo/eval

A checkpoint folder holds the adapter, the processor and the name of the base model, so `--adapter_path` alone is
enough; `--model_name_or_path` names another base (or, without an adapter, the model to evaluate). The processor comes
from the checkpoint, so pictures are scaled as they were in training; `--max_pixels` and `--min_pixels` win over it.

Written to --output_dir:
    settings.json      what was evaluated and how, with its fingerprint
    predictions.jsonl  a line a record, in the order of the data: id, question_type, completion, prediction (parsed, in
                       the task's frame), answer (original frame), sol (task's frame), image_size, processed_size,
                       format, accuracy, status (ok, parse_fail, length, load_error), error, record
    metrics.json       {"metrics": {task_type: {...}}, "counts": {...}, "settings": {...}}

Exit status 2 for a user's mistake, with one sentence.
"""

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import locate, use_checkout

ROOT = use_checkout()

LARGE_FILE = 64 * 2**20  # a larger weight file enters the fingerprint by size and time, not by content


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    from task.answer_parsing import thought_tags

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--model_name_or_path", help="model to evaluate, or base of the adapter (default: the base the adapter names)")
    add("--adapter_path", help="LoRA checkpoint folder")
    add("--dataset", nargs="+", required=True, metavar="MANIFEST", help="one or more YAML manifests")
    add("--image_root", help="folder that relative media paths start from (default: the manifest's data_root)")
    add("--output_dir", required=True, help="folder for predictions.jsonl and metrics.json")
    add("--overwrite", action="store_true", help="replace predictions of other settings in output_dir")
    add("--temperature", type=float, default=0.0, help="0 = greedy (default); above 0 samples")
    add("--seed", type=int, default=42, help="seed of the sampling and of random:N selections (default 42)")
    add("--batch_size", type=int, default=16, help="prompts decoded together (default 16)")
    add("--max_new_tokens", type=int, default=512, help="longest completion in tokens (default 512)")
    add("--max_pixels", type=int, help="picture budget in pixels (default: the processor's)")
    add("--min_pixels", type=int, help="smaller pictures are enlarged to this many pixels (default: the processor's)")
    add("--dtype", choices=("auto", "float32", "bfloat16"), help="default: bfloat16 on a GPU, float32 on a CPU")
    add("--attn_implementation", default="sdpa", help="sdpa (default), eager, flash_attention_2")
    add("--thought_end", default="</think>", help="what closes a thought; as in training (default </think>)")
    add("--limit", type=int, help="evaluate the first N records only")
    add("--on_bad_media", choices=("error", "skip"), default="error", help="skip: count it as load_error and go on")
    args = parser.parse_args(argv)
    args.dataset = [locate(path) for path in args.dataset]
    for name in ("model_name_or_path", "adapter_path"):
        setattr(args, name, getattr(args, name) and locate(getattr(args, name)))
    for name, least in (("batch_size", 1), ("max_new_tokens", 1), ("limit", 1), ("temperature", 0)):
        value = getattr(args, name)
        if value is not None and not value >= least:
            raise ValueError(f"--{name} {value}: it must be at least {least}.")
    thought_tags(args.thought_end)
    if args.model_name_or_path is None and args.adapter_path is None:
        raise ValueError("nothing to evaluate: give --model_name_or_path, --adapter_path, or both.")
    if args.dtype is None:
        import torch

        args.dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    return args


def settings_of(args: argparse.Namespace, rows) -> dict:
    """What the predictions depend on, and a fingerprint: sha256 over settings, model files and rows."""
    kept = {k: v for k, v in vars(args).items() if k not in ("output_dir", "overwrite", "batch_size", "on_bad_media")}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    for folder in (args.model_name_or_path, args.adapter_path):
        for file in sorted(Path(folder).glob("*")) if folder and Path(folder).is_dir() else ():
            if file.suffix in (".safetensors", ".bin", ".json", ".jinja"):
                stat = file.stat()
                large = stat.st_size > LARGE_FILE
                content = f"{stat.st_size} {stat.st_mtime_ns}".encode() if large else file.read_bytes()
                digest.update(file.name.encode() + hashlib.sha256(content).digest())
    for record in rows["record"]:
        digest.update(record.encode("utf-8", "surrogatepass"))
    return kept | {"fingerprint": digest.hexdigest()}


def check_output(folder: Path, settings: dict, overwrite: bool) -> None:
    """Makes the output folder; refuses one that holds predictions of another evaluation.

    Raises:
        ValueError: it cannot be made; or its predictions are of another model, data or settings, and `overwrite` is
            not set.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output_dir {folder} cannot be made ({error.strerror}): name another folder.") from error
    if overwrite or not (folder / "predictions.jsonl").exists():
        return
    try:
        old = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        old = {}
    if old.get("fingerprint") != settings["fingerprint"]:
        other = sorted(k for k in settings if k != "fingerprint" and k in old and old[k] != settings[k])
        what = f" (other {', '.join(other)})" if other else ""
        raise ValueError(
            f"--output_dir {folder} holds predictions of another evaluation{what}: "
            "choose a new folder, or replace them with --overwrite."
        )


def build_engine(args: argparse.Namespace):
    """(engine, module) with the model on its device in eval mode, and the settings' sampling."""
    import torch

    from model.checkpoints import load_policy
    from trainer.engines.sampling import Sampling
    from trainer.engines.transformers_engine import TransformersEngine

    device = "cuda" if torch.cuda.is_available() else "cpu"
    module, model, processor = load_policy(
        args.model_name_or_path,
        args.adapter_path,
        dtype=args.dtype,
        attn_implementation=args.attn_implementation,
        min_pixels=args.min_pixels,
        max_pixels=args.max_pixels,
    )
    model = model.to(device).eval()
    tokenizer = getattr(processor, "tokenizer", processor)
    print(f"{type(model).__name__} on {device}, {next(model.parameters()).dtype}", file=sys.stderr)
    sampling = Sampling(temperature=args.temperature)
    eos_ids = module.eos_token_ids(processor)
    engine = TransformersEngine(model, module, tokenizer, sampling, eos_ids, module.forbidden_token_ids(processor))
    return engine, module


def write_predictions(windows, file: Path, total: int) -> list[dict]:
    """Appends each window's predictions to `file` as it is done; returns them all."""
    predictions = []
    # A record may carry a lone surrogate: backslashreplace writes it as the JSON escape it came from.
    with file.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
        for window in windows:
            predictions += window
            out.writelines(json.dumps(p, ensure_ascii=False, default=_plain) + "\n" for p in window)
            out.flush()
    assert len(predictions) == total, (len(predictions), total)
    return predictions


def evaluate(args: argparse.Namespace, rows, tasks, settings: dict) -> dict:
    """Generates, scores and writes everything; returns the content of metrics.json."""
    import torch
    from tqdm import tqdm

    from trainer.evaluation import predict_windows, summarise
    from trainer.merged import merged_lora

    engine, module = build_engine(args)
    folder = Path(args.output_dir)
    (folder / "metrics.json").unlink(missing_ok=True)
    _write_json(folder / "settings.json", settings)
    torch.manual_seed(args.seed)
    started, tokens = time.monotonic(), 0
    with torch.no_grad(), merged_lora(engine.model), tqdm(total=len(rows), unit="item", desc="evaluation") as bar:

        def progress(items: int, new_tokens: int) -> None:
            nonlocal tokens
            tokens += new_tokens
            bar.set_postfix_str(f"{tokens / (time.monotonic() - started):.0f} tokens/s", refresh=False)
            bar.update(items)

        windows = predict_windows(
            engine,
            module,
            rows,
            tasks,
            max_new_tokens=args.max_new_tokens,
            batch_size=args.batch_size,
            thought_end=args.thought_end,
            on_bad_media=args.on_bad_media,
            progress=progress,
        )
        predictions = write_predictions(windows, folder / "predictions.jsonl", len(rows))
    statuses = [p["status"] for p in predictions]
    counts = {"items": len(predictions)} | {status: statuses.count(status) for status in sorted(set(statuses))}
    counts |= {"generated_tokens": tokens, "seconds": round(time.monotonic() - started, 2)}
    result = {"metrics": summarise(predictions, tasks), "counts": counts, "settings": settings}
    _write_json(folder / "metrics.json", result)
    return result


def _write_json(file: Path, value) -> None:
    file.write_text(json.dumps(value, indent=2, default=_plain) + "\n", encoding="utf-8")


def _plain(value):
    # numpy scalars and arrays that a task's parser or metric gave
    return value.tolist()


def main(argv: list[str] | None = None) -> int:
    try:
        args = parse_arguments(argv)
        from dataset.dataset_grpo import build_dataset
        from task.task_loader import load_tasks

        tasks = load_tasks()
        rows = build_dataset(
            args.dataset,
            tasks,
            thought_end=args.thought_end,
            seed=args.seed,
            image_root=args.image_root,
            on_bad_media=args.on_bad_media,
        )
        rows = rows.select(range(min(args.limit, len(rows)))) if args.limit else rows
        settings = settings_of(args, rows)
        check_output(Path(args.output_dir), settings, args.overwrite)
        result = evaluate(args, rows, tasks, settings)
    except (ValueError, OSError) as error:
        print(f"eval.py: {error}", file=sys.stderr)
        return 2
    for task_type, metrics in result["metrics"].items():
        print(task_type)
        for name, value in metrics.items():
            print(f"  {name:32} {value:.4f}" if isinstance(value, float) else f"  {name:32} {value}")
    print(f"written to {args.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
