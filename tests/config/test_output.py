"""What a stopped run resumes from: the latest complete checkpoint; later ones that are incomplete are reported."""

import json
from pathlib import Path

import pytest

from config.output import check_no_later, check_reporters, checkpoint_to_resume, finish, make_output, steps_left

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
    with pytest.raises(ValueError, match=f"resume_from_checkpoint={broken} is not a checkpoint .*{fault}"):
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
    with pytest.raises(ValueError, match="holds no complete checkpoint-N"):
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
    state = {"global_step": 6, "max_steps": 6, "epoch": 2.0}
    path = checkpoint(
        tmp_path, 6, json.dumps(state), **{ADAPTER: b"new", "optimizer.pt": b"1", "rng_state_0.pth": b"1"}
    )
    (path / "global_step6").mkdir()
    assert not steps_left(str(path), max_steps=6, num_train_epochs=3.0)
    assert steps_left(str(path), max_steps=7, num_train_epochs=3.0)
    assert not steps_left(str(path), max_steps=-1, num_train_epochs=2.0)
    assert steps_left(str(path), max_steps=-1, num_train_epochs=3.0)
    finish(str(path), str(path), best=False)  # a folder of its own, named by --resume: all is there
    finish(str(path), str(tmp_path), best=False)
    assert (tmp_path / ADAPTER).read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.iterdir()) == [ADAPTER, "checkpoint-6", "trainer_state.json"]


@pytest.mark.parametrize(("epoch", "asked", "left"), [
    (0.5, 0.5, False), (0.5, 0.75, True), (0.5, 1.0, True), (1.5, 2.0, True), (3 / 7, 0.3, False),
    (0.1 + 0.2, 0.3, False), (0.3, 0.1 + 0.2, False),
])  # fmt: skip
def test_epochs_may_be_fractions(tmp_path, epoch, asked, left):
    path = checkpoint(
        tmp_path, 3, json.dumps({"global_step": 3, "max_steps": 3, "num_train_epochs": 2, "epoch": epoch})
    )
    assert steps_left(str(path), max_steps=-1, num_train_epochs=asked) == left


def test_a_run_that_is_through_ends_with_its_best_weights_wherever_it_lies_now(tmp_path):
    checkpoint(tmp_path, 3, "{}", **{ADAPTER: b"best"})
    state = json.dumps({"global_step": 6, "best_model_checkpoint": "/where/it/was/checkpoint-3"})
    last = checkpoint(tmp_path, 6, state, **{ADAPTER: b"last"})
    for best in (True, False):
        finish(str(last), str(tmp_path), best=best)
        assert (tmp_path / ADAPTER).read_bytes() == (b"best" if best else b"last")
        assert (tmp_path / "trainer_state.json").read_text() == state


def test_a_run_writes_over_no_checkpoint_of_more_steps(tmp_path):
    checkpoint(tmp_path, 3, state=None)  # nothing that could be gone on from
    check_no_later(str(tmp_path), None)
    early, late = (checkpoint(tmp_path, step, json.dumps({"global_step": step})) for step in (9, 10))
    for begin, weights_only, step in ((None, False, 0), (early, False, 9), (early, True, 0), (late, True, 0)):
        with pytest.raises(
            ValueError, match=f"holds checkpoint-10, which a run from step {step} would overwrite"
        ) as told:
            check_no_later(str(tmp_path), begin and str(begin), weights_only)
        assert str(told.value).endswith(f"--resume {begin} --resume_weights_only true") == weights_only
    check_no_later(str(tmp_path), str(late))
    check_no_later(str(tmp_path / "another"), str(early))


class TestFolders:
    def test_an_output_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match=r"output_dir .*file cannot be created .*: name another folder"):
            make_output(str(tmp_path / "file"))

    def test_a_back_end_that_is_not_there(self):
        with pytest.raises(ValueError, match="report_to=nowhere: it is unknown or its package is not installed"):
            check_reporters(["nowhere"])

    def test_wandb_without_an_account(self, monkeypatch, tmp_path):
        pytest.importorskip("wandb")
        for name in ("WANDB_MODE", "WANDB_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        with pytest.raises(ValueError, match="no account is logged in: run `wandb login`, or set WANDB_MODE=offline"):
            check_reporters(["wandb"])
        monkeypatch.setenv("WANDB_MODE", "offline")
        check_reporters(["wandb"])

    def test_what_to_resume(self, tmp_path):
        checkpoint = tmp_path / "checkpoint-7"
        checkpoint.mkdir()
        (checkpoint / "trainer_state.json").write_text("{}")
        (checkpoint / "adapter_model.safetensors").write_bytes(b"weights")
        assert checkpoint_to_resume(None, str(tmp_path)) is None
        assert checkpoint_to_resume("false", str(tmp_path)) is None
        assert checkpoint_to_resume("true", str(tmp_path)) == str(checkpoint)
        assert checkpoint_to_resume(str(checkpoint), "elsewhere") == str(checkpoint)

    def test_nothing_to_resume(self, tmp_path):
        with pytest.raises(ValueError, match="holds no complete checkpoint-N"):
            checkpoint_to_resume("true", str(tmp_path / "absent"))
        with pytest.raises(ValueError, match=r"is not a checkpoint .*no trainer_state\.json"):
            checkpoint_to_resume(str(tmp_path), str(tmp_path))
