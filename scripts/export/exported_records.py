"""The records of an export by task: prompts, answers, and the pictures as the model sees them."""

import argparse
import json
import re
import shutil
from pathlib import Path

from PIL import Image

from task.errors import UserError

PICTURES = "pictures"


def read_tests(args: argparse.Namespace, module) -> dict[str, list[dict]]:
    """Records of the test set by task_type, in the order of the data.

    Each has id, text (of the user turn), target, pictures (PIL, in the processed size), and row: record, image_sizes
    and processed_sizes. UserError for what other tools cannot run: videos, and environments in which an agent acts.
    """
    from dataset.dataset_grpo import build_dataset, load_media, read_row
    from task.task_loader import load_tasks

    tasks = load_tasks(thought_end=args.thought_end, coordinate_frame=module.coordinate_frame)
    rows = build_dataset(args.dataset, tasks, seed=args.seed, image_root=args.image_root)
    rows = rows.select(range(min(args.limit, len(rows)))) if args.limit else rows
    found: dict[str, list[dict]] = {}
    for row in rows:
        record = read_row(row)
        refuse_unsupported(record, tasks[record["question_type"]])
        images, _ = load_media(record)
        prompt = module.encode(record["messages"], images)
        pictures = [as_seen(one, size, module) for one, size in zip(images, prompt.processed_sizes, strict=True)]
        sizes = {"image_sizes": prompt.image_sizes, "processed_sizes": prompt.processed_sizes}
        target = record["answer"] if isinstance(record["answer"], str) else json.dumps(record["answer"])
        test = {"id": record["id"], "text": text_of(record), "target": target, "pictures": pictures}
        found.setdefault(record["question_type"], []).append(test | {"row": {"record": record, **sizes}})
    return found


def refuse_unsupported(record: dict, task) -> None:
    if task.make_environment is not None:
        raise UserError(
            f"record {record['id']!r} is of the agent task {task.name}, whose environment answers between turns: other "
            "tools cannot run it; export the predictions of eval.py instead (samples)."
        )
    if record["videos"]:
        raise UserError(
            f"record {record['id']!r} has a video: other tools choose its frames by rules of their own, so scores "
            "would not be comparable; export records with pictures or text only."
        )


def text_of(record: dict) -> str:
    """The text of the user turn, without the places of pictures."""
    return "".join(part["text"] for part in record["messages"][-1]["content"] if part["type"] == "text")


def as_seen(picture: Image.Image, size: tuple[int, int], module) -> Image.Image:
    """The picture as the processor resizes it, so that further resizing by another tool leaves it as it is.

    Raises:
        UserError: it has fewer than 4 or more than 16,384 cells of the model's grid, the limits of qwen-vl-utils.
    """
    from torchvision.transforms.functional import pil_to_tensor, to_pil_image

    part = module.processor.image_processor
    cell = part.patch_size * part.merge_size
    if not 4 * cell**2 <= size[0] * size[1] <= 16384 * cell**2:
        raise UserError(
            f"a picture of {size[0]} x {size[1]} pixels would be resized by other tools, which give a model "
            f"pictures of {4 * cell**2:,} to {16384 * cell**2:,} pixels: set min_pixels and max_pixels within these."
        )
    if picture.size == tuple(size):
        return picture
    seen = part.resize(pil_to_tensor(picture), size=part.size, resample=part.resample, factor=cell)
    return to_pil_image(seen)


def task_name(task_type: str) -> str:
    """The name of a task_type in other tools.

    >>> task_name("ocr vqa, short")
    'grpo_ma_ocr_vqa__short'
    """
    return "grpo_ma_" + re.sub(r"[^\w-]", "_", task_type)


def write_tests(folder: Path, args: argparse.Namespace, module, tests: dict[str, list[dict]]) -> None:
    """Writes TASK.jsonl of each task, pictures/, settings.json and the user's own task files.

    A line of TASK.jsonl: id, text, target, pictures (paths in the folder), and row as JSON text. It is text because
    readers of tables refuse answers of mixed types.
    """
    from task.task_loader import load_tasks
    from trainer.evaluation.exported import OWN_TASKS, SETTINGS, metric_names

    tasks = load_tasks(thought_end=args.thought_end, coordinate_frame=module.coordinate_frame)
    if len({task_name(one) for one in tests}) < len(tests):
        raise UserError(f"the task types {', '.join(tests)} have equal names as tasks of other tools: rename one.")
    (folder / PICTURES).mkdir(parents=True)
    for task_type, records in tests.items():
        lines = [json.dumps(_line(folder, task_name(task_type), i, test)) for i, test in enumerate(records)]
        (folder / f"{task_name(task_type)}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if tasks[task_type].is_own:
            (folder / OWN_TASKS).mkdir(exist_ok=True)
            for file in tasks[task_type].path.parent.glob("*.py"):
                shutil.copy(file, folder / OWN_TASKS)
    settings = {
        "thought_end": args.thought_end,
        "coordinate_frame": module.coordinate_frame,
        "opened_thought": module.opened_thought,
        "metrics": {name: metric_names(tasks[name], [one["row"] for one in tests[name]]) for name in tests},
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _line(folder: Path, name: str, index: int, test: dict) -> dict:
    paths = [f"{PICTURES}/{name}_{index:06d}_{number}.png" for number in range(len(test["pictures"]))]
    for path, picture in zip(paths, test["pictures"], strict=True):
        picture.save(folder / path)
    row = test["row"] | {"record": test["row"]["record"] | {"images": paths}}
    return {"id": test["id"], "text": test["text"], "target": test["target"], "pictures": paths, "row": json.dumps(row)}
