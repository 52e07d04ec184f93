"""Tasks of lmms-eval (0.7.3) for exported records, and the command that runs them."""

import argparse
import json
import shlex
import shutil
from pathlib import Path

from exported_records import task_name

from task.parsing.answers import thought_tags
from task.rewards.directions import direction
from task.task_loader import load_tasks
from trainer.evaluation.exported import SETTINGS

# model type -> chat model of lmms-eval: it takes messages, and so the system prompt, from the task
MODELS = {"qwen2_5_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl"}
# The chat model qwen3_vl puts a system turn before those of the task. It is given an empty one, and the exported chat
# template leaves an empty one out.
MODEL_ARGS = {"qwen3_vl": ",system_prompt="}
NO_EMPTY_SYSTEM = (
    "{%- if messages[0].role == 'system' and messages[0].content is not string and not messages[0].content[0].text -%}"
    "{%- set messages = messages[1:] -%}{%- endif -%}\n"
)
TEMPLATES = {"qwen3_vl": NO_EMPTY_SYSTEM}
FUNCTIONS = "lmms_eval_task.py"
RUN = """\
#!/bin/bash
# The exported tests in lmms-eval, with the picture limits and prompts of training. Further arguments are added, and the
# last of equal ones counts: `bash run.sh --tasks mme` runs another benchmark with the same model, picture limits and
# reasoning tags. MODEL_ARGS adds arguments of the model, such as MODEL_ARGS=device_map=cpu.
set -euo pipefail
cd "$(dirname "$0")"
exec "${{PYTHON:-python}}" -m lmms_eval --model {model} \\
    --model_args "{model_args}${{MODEL_ARGS:+,$MODEL_ARGS}}" \\
    --include_path tests --tasks {tasks} \\
    --reasoning_tags {tags} \\
    --batch_size 1 --log_samples --output_path results "$@"
"""


def write_files(args: argparse.Namespace, out: Path, module, tests: dict[str, list[dict]]) -> None:
    """Writes TASK.yaml of each task with the functions that it names, and run.sh."""
    metrics = json.loads((out / "tests" / SETTINGS).read_text(encoding="utf-8"))["metrics"]
    tasks = load_tasks(thought_end=args.thought_end, coordinate_frame=module.coordinate_frame)
    shutil.copy(Path(__file__).with_name(FUNCTIONS), out / "tests")
    for task_type in tests:
        text = task_yaml(args, task_name(task_type), metrics[task_type], tasks[task_type].metrics)
        (out / "tests" / f"{task_name(task_type)}.yaml").write_text(text, encoding="utf-8")
    model_type, size = module.config.model_type, module.processor.image_processor.size
    limits = f"min_pixels={size.shortest_edge},max_pixels={size.longest_edge}"
    script = RUN.format(
        model=MODELS[model_type],
        model_args=f"pretrained={model_type},{limits},attn_implementation=sdpa{MODEL_ARGS.get(model_type, '')}",
        tasks=",".join(map(task_name, tests)),
        tags=shlex.quote(json.dumps([list(thought_tags(args.thought_end))])),
    )
    (out / "run.sh").write_text(script, encoding="utf-8")


def task_yaml(args: argparse.Namespace, name: str, metrics: list[str], declared: dict[str, str]) -> str:
    """The task file. It keeps the thoughts (`reasoning_tags: none`), since the format is scored too."""
    module = Path(FUNCTIONS).stem
    # 0 and 1 take nothing out of the distribution; greedy decoding does not read them
    sampling = {"do_sample": args.temperature > 0, "top_k": 0, "top_p": 1.0}
    generation = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature, "until": [], **sampling}
    lines = [
        f"task: {json.dumps(name)}",
        "dataset_path: json",
        f"dataset_kwargs: {json.dumps({'data_files': {'test': f'{name}.jsonl'}})}",
        "test_split: test",
        "output_type: generate_until",
        *(
            f"{function}: !function {module}.{function}"
            for function in ("doc_to_messages", "doc_to_visual", "doc_to_text", "doc_to_target", "process_results")
        ),
        "num_fewshot: 0",
        "reasoning_tags: none",
        f"generation_kwargs: {json.dumps(generation)}",
        "metric_list:",
    ]
    for metric in metrics:
        better = direction(metric, declared)
        lines += [
            f"  - metric: {json.dumps(metric)}",
            f"    aggregation: !function {module}.aggregate",
            f"    higher_is_better: {json.dumps(None if better is None else better == 'higher')}",
        ]
    return "\n".join(lines) + "\n"
