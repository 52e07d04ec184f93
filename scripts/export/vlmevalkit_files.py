"""Exported records in VLMEvalKit's format of custom questions, its config, and the command that runs it."""

import argparse
import csv
import json
import shutil
from pathlib import Path

from exported_records import task_name

from task.errors import UserError

# model type -> class of VLMEvalKit; it reads the generation from the name of the model's folder
MODELS = {"qwen2_5_vl": "Qwen2VLChat"}
SCORE = "vlmevalkit_score.py"
RUN = """\
#!/bin/bash
# The exported tests in VLMEvalKit, whose checkout VLMEVALKIT names; vlmevalkit_score.py then scores the completions.
set -euo pipefail
cd "$(dirname "$0")"
export LMUData="$PWD/tests"
"${PYTHON:-python}" "${VLMEVALKIT:?set it to the checkout of VLMEvalKit}/run.py" --config config.json --mode infer \\
    --work-dir outputs "$@"
echo "scores: python vlmevalkit_score.py and the files of predictions below outputs/, grpo_ma_grpo_ma_TASK.xlsx"
"""


def check_rows(tests: dict[str, list[dict]]) -> None:
    """UserError for prompts that the format cannot hold: it has pictures, then one text, and one system prompt."""
    for test in (test for records in tests.values() for test in records):
        *_, turn = test["row"]["record"]["messages"]
        kinds = [part["type"] for part in turn["content"]]
        if not test["pictures"]:
            raise UserError(
                f"record {test['id']!r} has no picture, and VLMEvalKit's custom questions are about pictures: export "
                "to lmms-eval, or leave it out."
            )
        if kinds != ["image"] * len(test["pictures"]) + ["text"]:
            raise UserError(
                f"record {test['id']!r} has a picture inside its question, and VLMEvalKit puts pictures before the "
                "text, which is another prompt than in training: export to lmms-eval."
            )
    if len(system_prompts(tests)) > 1:
        raise UserError(
            f"the tasks {', '.join(tests)} have different system prompts, and VLMEvalKit gives a model one: export "
            "them one at a time."
        )


def system_prompts(tests: dict[str, list[dict]]) -> set[str | None]:
    """The different system prompts of the records; None where there is none."""
    turns = [test["row"]["record"]["messages"][0] for records in tests.values() for test in records]
    return {one["content"][0]["text"] if one["role"] == "system" else None for one in turns}


def write_files(args: argparse.Namespace, out: Path, module, tests: dict[str, list[dict]]) -> None:
    """Writes TASK.tsv of each task, config.json, the script that scores, and run.sh."""
    for task_type, records in tests.items():
        name = task_name(task_type)
        lines = (out / "tests" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        with (out / "tests" / f"{name}.tsv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, delimiter="\t", lineterminator="\n")
            table.writerow(["index", "image_path", "question", "answer"])
            for index, (line, test) in enumerate(zip(lines, records, strict=True)):
                # A picture in the cell itself would be written as JPEG before the model sees it.
                paths = [f"tests/{path}" for path in json.loads(line)["pictures"]]
                table.writerow([index, paths[0] if len(paths) == 1 else str(paths), test["text"], test["target"]])
    shutil.copy(Path(__file__).with_name(SCORE), out)
    (out / "config.json").write_text(json.dumps(config(args, module, tests), indent=2) + "\n", encoding="utf-8")
    (out / "run.sh").write_text(RUN, encoding="utf-8")


def config(args: argparse.Namespace, module, tests: dict[str, list[dict]]) -> dict:
    model_type, size = module.config.model_type, module.processor.image_processor.size
    greedy = args.temperature == 0
    model = {
        "class": MODELS[model_type],
        "model_path": model_type,
        "min_pixels": size.shortest_edge,
        "max_pixels": size.longest_edge,
        "max_new_tokens": args.max_new_tokens,
        "do_sample": not greedy,
        "temperature": 0.01 if greedy else args.temperature,  # 0 is refused there, and top_k 1 is greedy
        "top_k": 1 if greedy else 0,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "use_custom_prompt": False,
        "system_prompt": next(iter(system_prompts(tests))),
    }
    names = [task_name(task_type) for task_type in tests]
    return {
        "model": {"grpo_ma": model},
        "data": {name: {"class": "CustomVQADataset", "dataset": name} for name in names},
    }
