"""What a stopped run goes on from: the newest checkpoint that is whole, said in words when a newer one is not."""

import json
from pathlib import Path

import pytest

from config.output import checkpoint_to_resume, finish, steps_left

ADAPTER = "adapter_model.safetensors"


def checkpoint(folder: Path, step, state: str | None = "{}", **weights: bytes) -> Path:
    """A checkpoint folder with a trainer state (None: without) and weight files, by default an adapter."""
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    if state is not None:
        (path / "trainer_state.json").write_text(state)
    for name, content in (weights or {ADAPTER: b"weights"}).items():
        (path / name).write_bytes(content)
    return path


DAMAGE = {
    "no trainer_state.json": {"state": None},
    "trainer_state.json is cut off": {"state": '{"epoch": 0.'},
    f"{ADAPTER} is empty": {ADAPTER: b""},
    "no weights": {"optimizer.pt": b"1"},
    "model-00002-of-00002.safetensors is empty": {
        "model-00001-of-00002.safetensors": b"1",
        "model-00002-of-00002.safetensors": b"",
    },
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_a_half_written_checkpoint_is_passed_over_and_named(tmp_path, capsys, fault):
    whole = checkpoint(tmp_path, 10)
    broken = checkpoint(tmp_path, 20, **DAMAGE[fault])
    assert checkpoint_to_resume("true", str(tmp_path)) == str(whole)
    said = capsys.readouterr().err
    assert str(broken) in said and fault in said
    with pytest.raises(ValueError, match=f"resume_from_checkpoint={broken} is no checkpoint .*{fault}"):
        checkpoint_to_resume(str(broken), str(tmp_path))


def test_newest_is_by_number_and_other_folders_do_not_count(tmp_path, capsys):
    for step in (9, 100, 20):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, "best")
    checkpoint(tmp_path, "200-old")
    (tmp_path / "runs").mkdir()
    assert checkpoint_to_resume(True, str(tmp_path)) == str(tmp_path / "checkpoint-100")
    assert capsys.readouterr().err == ""


def test_without_a_whole_one_nothing_is_resumed(tmp_path):
    checkpoint(tmp_path, 5, state=None)
    with pytest.raises(ValueError, match="holds no checkpoint-N that is whole"):
        checkpoint_to_resume("true", str(tmp_path))
    assert checkpoint_to_resume(None, str(tmp_path)) is None


@pytest.mark.parametrize("weights", [{"model.safetensors": b"1"}, {"pytorch_model.bin": b"1"}, {ADAPTER: b"1"}])
def test_every_form_of_weights_counts(tmp_path, weights):
    path = checkpoint(tmp_path, 3, json.dumps({"global_step": 3}), **weights)
    assert checkpoint_to_resume("true", str(tmp_path)) == str(path)


def test_weights_in_deepspeeds_own_form_count(tmp_path):
    path = checkpoint(tmp_path, 3, **{"README.md": b""})
    (path / "global_step3").mkdir()
    assert checkpoint_to_resume("true", str(tmp_path)) == str(path)


def test_a_run_that_is_through_trains_no_further_step_and_has_its_final_files(tmp_path):
    state = {"global_step": 6, "max_steps": 6, "num_train_epochs": 2}
    path = checkpoint(
        tmp_path, 6, json.dumps(state), **{ADAPTER: b"new", "optimizer.pt": b"1", "rng_state_0.pth": b"1"}
    )
    (path / "global_step6").mkdir()
    assert not steps_left(str(path), max_steps=6, num_train_epochs=3.0)
    assert steps_left(str(path), max_steps=7, num_train_epochs=3.0)
    assert not steps_left(str(path), max_steps=-1, num_train_epochs=2.0)
    assert steps_left(str(path), max_steps=-1, num_train_epochs=3.0)
    finish(str(path), str(tmp_path))
    assert (tmp_path / ADAPTER).read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.iterdir()) == [ADAPTER, "checkpoint-6", "trainer_state.json"]
