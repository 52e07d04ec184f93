"""Checks manifests before training: every record, picture and video, and, given a model, the length of every prompt.

Records that their task's rewards cannot score (a wrong form of answer, a missing picture) are reported too, and so are
coordinates outside the picture, or all between 0 and 1.

    python scripts/data/check.py metadata/demo/trajectory_train.yaml
    python scripts/data/check.py MANIFEST --model_name_or_path scripts/demo/tiny_model --max_pixels 401408

Exit status: 0 clean, 1 problems found (each is listed), 2 the command or a manifest is wrong.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import locate, use_checkout

ROOT = use_checkout()

sys.path.insert(0, str(ROOT / "scripts" / "data"))

from equal_problems import grouped
from tqdm import tqdm

from dataset.dataset_grpo import load_media, load_records, make_row, read_row
from dataset.media import MediaError, is_damaged_jpeg
from task.errors import UserError
from task.own_tasks import add_task_dir
from task.rewards.record_check import check_inside, check_record
from task.task_loader import MODEL_FRAMES, load_tasks

LISTED = 50  # kinds of problems printed; the rest are counted
MODEL_ONLY = ("chat_template_kwargs", "min_pixels", "max_pixels", "max_prompt_length")
DEFAULT_PROMPT_LENGTH = 4096  # as in training


def main(argv: list[str] | None = None) -> int:
    args = _parse_arguments(argv)
    problems: list[str] = []
    try:
        module = _load_module(args)
        frame = args.coordinate_frame or (module.coordinate_frame if module else "processed")
        tasks = load_tasks(thought_end=args.thought_end, coordinate_frame=frame)
        records = load_records(args.manifests, args.seed, args.image_root, on_problem=problems.append)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2

    rows = _checked_rows(records, tasks, problems)
    counts = {"question type": Counter(row["question_type"] for row in rows), "modality": Counter(map(_modality, rows))}
    sizes, lengths = Counter(), []
    bad_media = 0
    for row in tqdm(rows, desc="media", unit="record", disable=not sys.stderr.isatty()):
        try:
            images, videos = load_media(row)
        except MediaError as error:
            bad_media += 1
            problems.append(str(error))
            continue
        problems += [
            f"record {row['id']!r}: picture {path} can be decoded, but its data are damaged: replace the file."
            for path in filter(is_damaged_jpeg, row["images"])
        ]
        sizes.update(image.size for image in images)
        size = processed = next((picture.size for picture in [*images, *(video[0] for video in videos)]), None)
        try:
            if module is not None:
                processed = _measure(row, images, videos, module, args.max_prompt_length, lengths)
            check_record(tasks[row["question_type"]], row, size, processed)
            check_inside(tasks[row["question_type"]], row, size)
        except UserError as error:
            problems.append(str(error))

    _print_table(len(records), counts, sizes, bad_media)
    if lengths:
        _print_lengths(lengths, args.max_prompt_length)
    _print_problems(problems)
    return 1 if problems else 0


def _checked_rows(records: list[dict], tasks: dict, problems: list[str]) -> list[dict]:
    rows = []
    for record in records:
        try:
            rows.append(read_row(make_row(record, tasks)))
        except UserError as error:
            problems.append(str(error))
    return rows


def _measure(row: dict, images, videos, module, limit: int, lengths: list[int]) -> tuple[int, int] | None:
    """Appends the prompt's length in tokens, media expanded; returns the processed size of its first picture.

    Raises UserError for a prompt that cannot be encoded or is over the limit.
    """
    try:
        prompt = module.encode(row["messages"], images, videos)
    except ValueError as error:
        raise UserError(f"record {row['id']!r}: {error}") from error
    tokens = len(prompt.ids)
    lengths.append(tokens)
    if tokens > limit:
        raise UserError(
            f"record {row['id']!r}: the prompt has {tokens} tokens, over max_prompt_length {limit}: raise the limit, "
            "lower max_pixels, or shorten the question."
        )
    return next(iter(prompt.processed_sizes), None)


def _modality(row: dict) -> str:
    if row["videos"]:
        return "video" if not row["images"] else "image and video"
    return ("text", "one image")[len(row["images"])] if len(row["images"]) < 2 else "several images"


def _load_module(args):
    """The model family's module with its processor; no weights are read."""
    if args.model_name_or_path is None:
        return None
    from model.chat_templates import read_template_kwargs
    from model.registry import module_for  # torch and transformers: seconds that the plain check saves

    module = module_for(args.model_name_or_path)
    module.template_kwargs = read_template_kwargs(args.chat_template_kwargs)
    module.load_processor(args.model_name_or_path, min_pixels=args.min_pixels, max_pixels=args.max_pixels)
    return module


def _print_table(total: int, counts: dict[str, Counter], sizes: Counter, bad_media: int) -> None:
    _line("records", total)
    for title, counter in counts.items():
        for name, count in counter.most_common():
            _line(f"  {title} {name}", count)
    _line("pictures", sizes.total())
    if sizes:
        widths, heights = zip(*sizes, strict=True)
        _line("  width, minimum to maximum", f"{min(widths)} to {max(widths)}")
        _line("  height, minimum to maximum", f"{min(heights)} to {max(heights)}")
        for (width, height), count in sizes.most_common(5):
            _line(f"  size {width}x{height}", count)
        if len(sizes) > 5:
            _line("  other sizes", f"{len(sizes) - 5} of them")
    _line("records with bad media", bad_media)


def _print_lengths(lengths: list[int], limit: int) -> None:
    over = sum(length > limit for length in lengths)
    _line("prompt tokens, minimum / median / maximum", f"{min(lengths)} / {median(lengths):g} / {max(lengths)}")
    _line(f"prompts over {limit} tokens", f"{over} ({over / len(lengths):.1%})")


def _print_problems(problems: list[str]) -> None:
    _line("problems", len(problems))
    kinds = grouped(problems)
    for problem in kinds[:LISTED]:
        print(f"- {problem}")
    if len(kinds) > LISTED:
        print(f"- and {len(kinds) - LISTED} more kinds")


def _line(name: str, value) -> None:
    print(f"{name:<48} {value}")


def _parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "manifests", nargs="*", metavar="MANIFEST", help="YAML manifest; several are mixed as in training"
    )
    parser.add_argument(
        "--dataset_name", "--dataset", nargs="+", default=[], help="the same, by the name it has in training"
    )
    parser.add_argument("--image_root", help="folder that relative media paths start from, instead of data_root")
    parser.add_argument("--seed", type=int, default=42, help="seed of random:N sampling (default 42)")
    parser.add_argument("--thought_end", default="</think>", help="closing thought tag of the run (default </think>)")
    parser.add_argument(
        "--coordinate_frame", choices=MODEL_FRAMES, help="scale of the model's coordinates (default: the family's)"
    )
    parser.add_argument("--chat_template_kwargs", help="JSON object of switches of the model's chat template")
    parser.add_argument("--model_name_or_path", help="model whose processor counts the prompt tokens")
    parser.add_argument(
        "--min_pixels", type=int, help="minimum pixels per picture after resizing (default: the model's)"
    )
    parser.add_argument(
        "--max_pixels", type=int, help="maximum pixels per picture after resizing (default: the model's)"
    )
    parser.add_argument(
        "--max_prompt_length", type=int, help=f"maximum prompt tokens, media included (default {DEFAULT_PROMPT_LENGTH})"
    )
    add_task_dir(parser)
    args = parser.parse_args(argv)
    given = [name for name in MODEL_ONLY if getattr(args, name) is not None]
    if given and args.model_name_or_path is None:
        parser.error(f"--{given[0]} needs --model_name_or_path: prompts are measured by a model's processor")
    if args.max_prompt_length is None:
        args.max_prompt_length = DEFAULT_PROMPT_LENGTH
    if args.max_prompt_length < 1:
        parser.error(f"--max_prompt_length {args.max_prompt_length}: it must be at least 1")
    args.manifests = [locate(path) for path in (*args.manifests, *args.dataset_name)]
    if not args.manifests:
        parser.error("name a manifest or a record file")
    args.model_name_or_path = args.model_name_or_path and locate(args.model_name_or_path)
    return args


if __name__ == "__main__":
    raise SystemExit(main())
