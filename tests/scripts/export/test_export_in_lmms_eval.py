"""An exported model and its tests in lmms-eval itself, in an environment of its own: the scores of eval.py.

GRPO_MA_LMMS_EVAL names the Python of that environment (docs/export.md says how to make it).
"""

import json
import os
import subprocess
import sys

import pytest
from family_runs import saved
from paths import ROOT

VARIABLE = "GRPO_MA_LMMS_EVAL"
TASK, RECORDS = "grpo_ma_trajectory-sharerobot", 4


@pytest.fixture(scope="module")
def python():
    """The Python of lmms-eval's environment."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} does not name the Python of an environment with lmms-eval (docs/export.md)")
    return named


def started(*words, **variables):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables
    done = subprocess.run(list(map(str, words)), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["qwen2_5_vl", "qwen3_vl"])
def test_its_scores_and_completions_are_those_of_evaluation(python, export, tiny_model_dir, tmp_path, model_type):
    """The shipped model, which has learnt the task, and a random one of Qwen3-VL."""
    model = tiny_model_dir if model_type == "qwen2_5_vl" else saved(model_type, tmp_path / "model")
    run = ("--model_name_or_path", model, "--dataset", ROOT / "metadata" / "demo" / "trajectory_test.yaml")
    run += ("--limit", RECORDS, "--max_new_tokens", 100, "--max_pixels", 7840)
    out = tmp_path / "out"
    assert export("lmms-eval", *run, "--output_dir", out) == 0
    place = {"PYTHON": python, "PYTHONPATH": str(ROOT), "MODEL_ARGS": "device_map=cpu", "HF_HOME": str(tmp_path / "hf")}
    started("bash", out / "run.sh", "--device", "cpu", **place)
    ours = tmp_path / "eval"
    # lmms-eval always loads bfloat16, and its batches here are of one record
    like = ("--dtype", "bfloat16", "--batch_size", 1)
    started(sys.executable, "scripts/eval/eval.py", *run, *like, "--output_dir", ours)
    assert export("samples", "--predictions", ours, "--output_dir", tmp_path / "samples") == 0

    (results,) = out.glob("results/*/*_results.json")
    theirs = json.loads(results.read_text())["results"][TASK]
    expected = json.loads((ours / "metrics.json").read_text())["metrics"]["trajectory-sharerobot"]
    found = {name.split(",")[0]: value for name, value in theirs.items()}
    compared = {name for name in expected if name != "n" and not name.startswith("n_")}
    assert len(compared) == 12 and {name: found[name] for name in compared} == {
        name: expected[name] for name in compared
    }

    (written,), (converted,) = out.glob(f"results/*/*_samples_{TASK}.jsonl"), (tmp_path / "samples").glob("*.jsonl")
    theirs, samples = (list(map(json.loads, file.read_text().splitlines())) for file in (written, converted))
    assert [one | {"input_media": None} for one in samples] == [one | {"input_media": None} for one in theirs]
