"""The commands of the published system, word for word, in a checkout of their own: what each starts, or says.

The stand-in for Python writes down what a launcher starts; where a command trains or evaluates, it is the real one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest
from paths import ROOT

PACKAGES = ("config", "dataset", "model", "scripts", "task", "trainer")
TRAIN, TEST = (f"metadata/grpo_sharerobot_trajectory_{part}.json" for part in ("train", "test"))
PICTURES = "data/ShareRobot/trajectory/images"
WEIGHTS = "pretrained_weights/Qwen2.5-VL-3B-Instruct"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the checkout's code, without data of its own."""
    folder = tmp_path_factory.mktemp("published") / "GRPO-MA"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", folder)
    (folder / "metadata").mkdir()
    return folder


@pytest.fixture
def checkout(source):
    """The copy; data and results that a test puts in are taken out again."""
    before = {path for path in source.rglob("*") if "__pycache__" not in path.parts}
    yield source
    for path in sorted(source.rglob("*"), reverse=True):
        if path not in before and "__pycache__" not in path.parts:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.fixture
def python(tmp_path):
    """A Python that counts FAKE_GPUS, and for which a launched program is only written down."""
    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/bash\n"
        'if [[ $1 == -c && $2 == *torch* ]]; then echo "${FAKE_GPUS:-0}"; exit 0; fi\n'
        'if [[ $1 == *start_processes.py || $1 == *eval.py ]]; then printf "%s\\n" "$@"; exit 0; fi\n'
        f'exec {sys.executable} "$@"\n'
    )
    fake.chmod(0o755)
    return fake


def shell(text: str, checkout, python=sys.executable, **variables):
    """Runs a text as a user's shell would, in the checkout."""
    ours = ("DATASET_NAME", "MODEL_PATH", "OUTPUT_DIR", "RUN_NAME", "IMAGE_ROOT", "ADAPTER_PATH", "CONFIG", "METHOD")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"PYTHON": str(python), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}
    environment = {name: value for name, value in environment.items() if value is not None}
    command = ["bash", "-c", text]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=600)


def started(done) -> dict[str, str]:
    """The flags of what a launcher started, the last of equal ones."""
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    return {word: after for word, after in pairwise(words) if word.startswith("--")}


def put_published(checkout, records: int = 2) -> None:
    """The published files, made of the demo's scenes."""
    lines = (ROOT / "metadata" / "demo" / "trajectory" / "train.jsonl").read_text().splitlines()[:records]
    content = [json.loads(line) for line in lines]
    for file in (TRAIN, TEST):
        (checkout / file).write_text(json.dumps(content))
    for record in content:
        picture = checkout / PICTURES / record["image"]
        picture.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "metadata" / "demo" / "trajectory" / record["image"], picture)


LORA = "THINK_NUM=4 ANSWER_NUM=4 bash scripts/run_grpo_lora.sh"


def test_the_launcher_alone_trains_on_the_published_records_where_they_lie(checkout, python):
    put_published(checkout)
    done = shell(LORA, checkout, python, FAKE_GPUS="4", CUDA_VISIBLE_DEVICES=None)
    flags = started(done)
    assert flags["--dataset_name"] == str(checkout / "scripts" / "train" / "grpo_trajectory.yaml")
    assert (flags["--think_num"], flags["--answer_num"], flags["--num_processes"]) == ("4", "4", "4")
    assert "--model_name_or_path" not in flags
    assert flags["--output_dir"].startswith("runs/grpo_ma_qwen2_5_vl_3b-2")  # and the date
    checked = shell("$PYTHON scripts/data/check.py scripts/train/grpo_trajectory.yaml", checkout)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"--dataset_name {checkout}/scripts/train/grpo_trajectory.yaml" in done.stderr


def test_without_the_records_it_says_which_two_commands_fetch_them(checkout, python):
    done = shell(LORA, checkout, python, FAKE_GPUS="4", CUDA_VISIBLE_DEVICES=None)
    assert done.returncode == 2 and done.stdout == ""
    commands = re.findall(r"^ *(hf download .*)$", done.stderr, re.MULTILINE)
    page = (ROOT / "metadata" / "README.md").read_text(encoding="utf-8")
    assert len(commands) == 2 and all(f"\n{command}\n" in page for command in commands)
    assert not (checkout / "runs").exists()


def test_the_two_commands_are_those_of_the_installed_hub():
    page = (ROOT / "metadata" / "README.md").read_text(encoding="utf-8")
    program = os.path.join(os.path.dirname(sys.executable), "hf")
    if not os.path.exists(program):
        pytest.skip("the hub's command line is not installed")
    known = subprocess.run([program, "download", "--help"], capture_output=True, text=True).stdout
    flags = set(re.findall(r"--[a-z-]+", " ".join(re.findall(r"^hf download .*$", page, re.MULTILINE))))
    assert flags == {"--repo-type", "--local-dir", "--include"} and all(flag in known for flag in flags)


def test_the_demo_and_other_models_take_no_sharerobot_defaults(checkout, python):
    put_published(checkout)
    (checkout / WEIGHTS).mkdir(parents=True)
    (checkout / WEIGHTS / "config.json").write_text("{}")
    for text, gpus in (
        (LORA, "0"),  # the CPU demo
        ("CONFIG=config/recipes/grpo_ma_demo.yaml " + LORA, "4"),
        ("CONFIG=config/recipes/tree_adv_qwen2_5_3b.yaml " + LORA, "4"),
    ):
        flags = started(shell(text, checkout, python, FAKE_GPUS=gpus, CUDA_VISIBLE_DEVICES=None))
        assert "--dataset_name" not in flags and "--model_name_or_path" not in flags, text
    for script in ("run_grpo_lora.sh", "run_grpo_full.sh"):
        flags = started(shell(f"bash scripts/{script}", checkout, python, FAKE_GPUS="4", CUDA_VISIBLE_DEVICES=None))
        assert flags["--model_name_or_path"] == WEIGHTS and "--dataset_name" in flags
    own = "MODEL_PATH=/m DATASET_NAME=/d.yaml bash scripts/run_grpo_lora.sh"
    flags = started(shell(own, checkout, python, FAKE_GPUS="4", CUDA_VISIBLE_DEVICES=None))
    assert (flags["--model_name_or_path"], flags["--dataset_name"]) == ("/m", "/d.yaml")


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("RUN_NAME=mine OUTPUT_DIR=/o bash scripts/run_grpo_lora.sh --output_dir /f", "/f"),
        ("RUN_NAME=mine OUTPUT_DIR=/o bash scripts/run_grpo_lora.sh", "/o"),
        ("RUN_NAME=mine bash scripts/run_grpo_lora.sh", "output/mine"),
        ("bash scripts/run_grpo_lora.sh --resume auto", None),
    ],
)
def test_the_output_folder_is_the_flags_the_variables_the_run_names_or_the_recipes(checkout, python, text, folder):
    flags = started(shell(text, checkout, python, FAKE_GPUS="0", CUDA_VISIBLE_DEVICES=None))
    assert flags.get("--output_dir") == folder


EVALUATE = "ADAPTER_PATH={} bash scripts/eval/run_eval_trajectory.sh"


def test_the_evaluation_takes_the_published_test_records_when_they_are_there(checkout, python):
    (checkout / "output" / "mine").mkdir(parents=True)
    settings = checkout / "output" / "mine" / "adapter_config.json"
    settings.write_text('{"base_model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct"}')
    demo = str(checkout / "metadata" / "demo" / "trajectory_test.yaml")
    done = shell(EVALUATE.format("output/mine"), checkout, python)
    assert started(done)["--dataset"] == demo and f"test file {demo}" in done.stderr
    put_published(checkout)
    done = shell(EVALUATE.format("output/mine"), checkout, python)
    flags = started(done)
    assert (flags["--dataset"], flags["--image_root"]) == (str(checkout / TEST), str(checkout / PICTURES))
    assert f"test file {checkout / TEST}\n" in done.stderr and flags["--output_dir"] == "output/mine/eval"
    settings.write_text('{"base_model_name_or_path": "/x/scripts/demo/tiny_model"}')
    assert started(shell(EVALUATE.format("output/mine"), checkout, python))["--dataset"] == demo
    settings.parent.joinpath("checkpoint-3").mkdir()
    settings.rename(settings.parent / "checkpoint-3" / settings.name)
    assert started(shell(EVALUATE.format("output/mine"), checkout, python))["--dataset"] == demo
    own = "DATASET_NAME=own.yaml " + EVALUATE.format("output/mine")
    assert started(shell(own, checkout, python))["--dataset"] == "own.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["ADAPTER_PATH", "MODEL_PATH"])
def test_a_wrong_path_of_a_model_leaves_no_folder_behind(checkout, variable):
    put_published(checkout)
    done = shell(f"{variable}=output/nope bash scripts/eval/run_eval_trajectory.sh", checkout)
    assert done.returncode == 2 and "output/nope" in done.stderr and "Traceback" not in done.stderr
    assert not (checkout / "output").exists() and not (checkout / "runs").exists()


SMALL = {"CUDA_VISIBLE_DEVICES": "", "MAX_STEPS": "1", "PER_DEVICE_TRAIN_BATCH_SIZE": "16", "DEEPSPEED_CONFIG": "none"}


@pytest.mark.slow
def test_a_published_manifest_trains_and_its_records_are_evaluated(checkout):
    """Paths from the repository's root in a manifest below scripts/; a record file in the place of a manifest."""
    put_published(checkout)
    shutil.copy(checkout / TRAIN, checkout / "metadata" / "my_task_train.json")
    (checkout / "scripts" / "train" / "grpo_my_task.yaml").write_text(
        f"datasets:\n- json_path: metadata/my_task_train.json\n  data_root: {PICTURES}\n"
    )
    text = "export DATASET_NAME=scripts/train/grpo_my_task.yaml; bash scripts/run_grpo_lora.sh"
    done = shell(text, checkout, RUN_NAME="mine", **SMALL)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert f"records {checkout}/metadata/my_task_train.json (all), media from {checkout}/{PICTURES}" in done.stdout
    assert (checkout / "output" / "mine" / "adapter_config.json").exists()
    evaluate = f"$PYTHON scripts/eval/eval.py --model_name_or_path scripts/demo/tiny_model --dataset {TEST}"
    done = shell(f"{evaluate} --image_root {PICTURES} --output_dir output/eval --max_new_tokens 8", checkout)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((checkout / "output" / "eval" / "metrics.json").read_text())["counts"]["items"] == 2
    text = f"$PYTHON train.py --config config/recipes/grpo_ma_demo.yaml --dataset_name {TRAIN} --image_root {PICTURES}"
    done = shell(f"{text} --output_dir output/two --max_steps 1 --per_device_train_batch_size 16", checkout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
