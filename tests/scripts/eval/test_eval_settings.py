"""The fingerprint of an evaluation: what must not be mixed in one folder, and what may."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import scripts.eval.eval  # noqa: F401  (puts scripts/eval on the path)

import eval_settings  # isort: skip


@pytest.fixture
def case(tmp_path):
    """(fingerprint of changed flags, the folder with base, adapter and task file)."""
    for name, content in {"base/model.safetensors": "b", "adapter/adapter_model.safetensors": "a", "t.py": "1"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    base = {"base_model_name_or_path": str(tmp_path / "base")}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(base))
    tasks = {"t": SimpleNamespace(path=tmp_path / "t.py"), "other": SimpleNamespace(path=tmp_path / "none.py")}

    def fingerprint(*flags, rows=("t",)):
        given = [
            "--adapter_path",
            tmp_path / "adapter",
            "--dataset",
            "d.yaml",
            "--output_dir",
            "o",
            "--dtype",
            "float32",
        ]
        args = eval_settings.parse_arguments("", [str(flag) for flag in (*given, *flags)])
        args.processes = 1
        records = [json.dumps({"id": str(i), "question_type": name}) for i, name in enumerate(rows)]
        return eval_settings.fingerprinted_settings(args, {"record": records}, tasks)["fingerprint"]

    return fingerprint, tmp_path


@pytest.mark.parametrize("file", ["base/model.safetensors", "adapter/adapter_model.safetensors", "t.py"])
def test_a_changed_file_is_another_evaluation(case, file):
    fingerprint, folder = case
    before = fingerprint()
    assert fingerprint() == before
    (folder / file).write_text("changed")
    assert fingerprint() != before


def test_what_eval_writes_beside_an_adapter_is_no_change_of_it(case):
    fingerprint, folder = case
    before = fingerprint()
    for name in ("settings.json", "metrics.json", "checkpoints.json"):
        (folder / "adapter" / name).write_text("{}")
    assert fingerprint() == before


def test_rows_and_settings_belong_to_it_and_speed_does_not(case):
    fingerprint, _ = case
    before = fingerprint()
    assert fingerprint("--batch_size", 3) == before == fingerprint("--pass_threshold", 0.5)
    for flags in (
        ["--max_new_tokens", 9],
        ["--environment_args", "{}"],
        ["--thought_end", "</analysis>"],
        ["--limit", 5],
    ):
        assert fingerprint(*flags) != before
    assert fingerprint(rows=("t", "t")) != before
    sampled = fingerprint("--temperature", 1)
    assert sampled != fingerprint("--temperature", 1, "--batch_size", 3)


def test_an_adapter_that_names_no_base_is_left_to_the_loader(case):
    fingerprint, folder = case
    for content in ("[]", "not JSON", "{}", '{"base_model_name_or_path": null}'):
        (folder / "adapter/adapter_config.json").write_text(content)
        assert fingerprint()
