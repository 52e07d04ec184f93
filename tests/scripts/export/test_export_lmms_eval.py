"""grpo-ma export lmms-eval: what is written, and that lmms-eval's functions give the metrics of eval.py."""

import importlib.util
import json
import math
import pickle
import subprocess
import sys

import pytest
import yaml
from paths import ROOT

from dataset.dataset_grpo import build_dataset, load_media, read_row
from model.registry import module_for
from task.task_loader import load_tasks
from trainer.evaluation.batches import Sample
from trainer.evaluation.scoring import scored
from trainer.evaluation.summary import summarise

TASKS = {name: f"grpo_ma_{name}" for name in ("trajectory-sharerobot", "ocr-vqa", "math-reasoning")}
LIMITS = {"min_pixels": 3136, "max_pixels": 7056}
RIGHT = {
    "trajectory-sharerobot": "<think>Left.</think><answer>[[10, 20], [30, 41.5]]</answer>",
    "ocr-vqa": "<think>A sign.</think><answer>Corner Shoes</answer>",
    "math-reasoning": "<think>Easy.</think><answer>12</answer>",
}
COMPLETIONS = ["no tags", "<think>cut", "<think>a</think><answer></answer>"]


class Functions(yaml.SafeLoader):
    """YAML in which `!function module.name` is read as lmms-eval reads it, from a file beside the YAML."""

    def function(self, node):
        module, name = self.construct_scalar(node).split(".")
        spec = importlib.util.spec_from_file_location(module, self.folder / f"{module}.py")
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return getattr(loaded, name)


Functions.add_constructor("!function", Functions.function)


def read_task(folder, task_type: str) -> tuple[dict, list[dict]]:
    """(the task's YAML, its documents)."""
    Functions.folder = folder / "tests"
    with (folder / "tests" / f"{TASKS[task_type]}.yaml").open(encoding="utf-8") as file:
        task = yaml.load(file, Functions)
    lines = (folder / "tests" / task["dataset_kwargs"]["data_files"]["test"]).read_text(encoding="utf-8").splitlines()
    return task, list(map(json.loads, lines))


@pytest.fixture(scope="module")
def module(tiny_model_dir):
    module = module_for(str(tiny_model_dir))
    module.load_processor(str(tiny_model_dir), **LIMITS)
    return module


@pytest.fixture(scope="module")
def own(manifest, module):
    """(record, pictures, prompt) by task type, as eval.py reads them."""
    found = {}
    for record in map(read_row, build_dataset([str(manifest)], load_tasks(coordinate_frame="processed"))):
        images, _ = load_media(record)
        prompt = module.encode(record["messages"], images)
        found.setdefault(record["question_type"], []).append((record, images, prompt))
    return found


@pytest.mark.parametrize("task_type", TASKS)
def test_its_functions_give_the_metrics_of_evaluation(for_lmms_eval, own, task_type):
    task, documents = read_task(for_lmms_eval, task_type)
    texts = [RIGHT[task_type], *COMPLETIONS][: len(documents)]
    results = [task["process_results"](doc, [text]) for doc, text in zip(documents, texts, strict=True)]
    ours = load_tasks(coordinate_frame="processed")[task_type]
    rows = zip(own[task_type], texts, strict=True)
    predictions = [scored(ours, r, prompt, [Sample([], "ok", 0)], lambda _, t=text: t) for (r, _, prompt), text in rows]
    expected = summarise(predictions, {task_type: ours})[task_type]
    names = [name for name in expected if name != "n" and not name.startswith("n_")]
    assert [metric["metric"] for metric in task["metric_list"]] == names and "accuracy" in names
    for metric in task["metric_list"]:
        scores = pickle.loads(pickle.dumps([result[metric["metric"]] for result in results]))  # as between processes
        assert metric["aggregation"](scores) == expected[metric["metric"]]
        assert all(math.isfinite(score) for score in scores)


def test_directions_are_those_that_the_tasks_declare(for_lmms_eval):
    def better(task_type):
        return {m["metric"]: m["higher_is_better"] for m in read_task(for_lmms_eval, task_type)[0]["metric_list"]}

    found = better("trajectory-sharerobot")
    assert (found["dfd_px"], found["accuracy"], found["parse_failure_rate"]) == (False, True, False)
    assert better("math-reasoning")["boxed_share"] is None, "METRICS does not declare it"


@pytest.mark.parametrize("task_type", TASKS)
def test_prompts_and_pictures_are_those_of_evaluation(for_lmms_eval, own, module, task_type):
    task, documents = read_task(for_lmms_eval, task_type)
    for doc, (record, images, prompt) in zip(documents, own[task_type], strict=True):
        (turn,) = task["doc_to_messages"](doc)
        pictures = [part["url"] for part in turn["content"] if part["type"] == "image"]
        assert [p.size for p in pictures] == prompt.processed_sizes
        again = module.encode(record["messages"], pictures)
        assert again.ids == prompt.ids and again.media_key == prompt.media_key, "to the last pixel"
        assert [part.get("text") for part in turn["content"]][-1] == record["messages"][0]["content"][-1]["text"]
        assert (
            task["doc_to_text"](doc).startswith(record["question"])
            and json.loads(doc["row"])["record"]["id"] == doc["id"]
        )
        assert not images or str(images[0].size) not in doc["pictures"][0]
    if task_type == "trajectory-sharerobot":
        assert any(images[0].size != prompt.processed_sizes[0] for _, images, prompt in own[task_type])


def test_pictures_stay_as_they_are_in_qwens_own_resizing(for_lmms_eval):
    vision = pytest.importorskip("qwen_vl_utils.vision_process")
    for doc in read_task(for_lmms_eval, "ocr-vqa")[1]:
        (picture,) = read_task(for_lmms_eval, "ocr-vqa")[0]["doc_to_visual"](doc)
        assert vision.smart_resize(picture.height, picture.width, 28) == (picture.height, picture.width)


def test_the_command_has_the_limits_the_tags_and_the_tests(for_lmms_eval):
    script = (for_lmms_eval / "run.sh").read_text(encoding="utf-8")
    assert 'model_args "pretrained=qwen2_5_vl,min_pixels=3136,max_pixels=7056,' in script
    assert f"--include_path tests --tasks {','.join(TASKS.values())} " in script
    assert """--reasoning_tags '[["<think>", "</think>"]]'""" in script
    assert subprocess.run(["bash", "-n", for_lmms_eval / "run.sh"]).returncode == 0
    task, _ = read_task(for_lmms_eval, "ocr-vqa")
    assert task["reasoning_tags"] == "none", "the format of the thought is scored too"
    assert (task["generation_kwargs"]["max_new_tokens"], task["generation_kwargs"]["temperature"]) == (64, 0.0)


def test_the_model_has_the_limits_and_generates_without_the_penalties_of_its_base(for_lmms_eval, tiny_model_dir):
    folder = for_lmms_eval / "qwen2_5_vl"
    processor = json.loads((folder / "processor_config.json").read_text())["image_processor"]
    assert processor["size"] == {"shortest_edge": 3136, "longest_edge": 7056}
    base = json.loads((tiny_model_dir / "generation_config.json").read_text())
    settings = json.loads((folder / "generation_config.json").read_text())
    assert base["repetition_penalty"] != 1 and settings.get("repetition_penalty", 1) == 1
    assert settings["do_sample"] is False and set(settings["suppress_tokens"]).isdisjoint(settings["eos_token_id"])
    assert (folder / "model.safetensors").resolve() == tiny_model_dir / "model.safetensors"


def test_no_path_of_this_machine_is_in_the_tests(for_lmms_eval):
    for file in [for_lmms_eval / "run.sh", *(for_lmms_eval / "tests").glob("*.*")]:
        assert str(ROOT) not in file.read_text(encoding="utf-8"), file


def test_where_the_package_is_missing_the_functions_say_so(for_lmms_eval, tmp_path):
    code = "import lmms_eval_task as task; task.aggregate([])"
    place = {"PYTHONPATH": str(for_lmms_eval / "tests"), "PYTHONSAFEPATH": "1"}
    blocked = "import sys; sys.modules['trainer'] = None; " + code
    done = subprocess.run([sys.executable, "-c", blocked], env=place, cwd=tmp_path, capture_output=True, text=True)
    assert "put its checkout on PYTHONPATH, or install it" in done.stderr.splitlines()[-1]
