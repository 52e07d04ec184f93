"""A folder that holds another run is refused, or its results are set aside."""

import json

import pytest
from trainer_cases import text_trainer

from config.output import begin_in
from task.errors import UserError
from trainer.run.output_folder import results_in, set_aside

STEP = json.dumps({"step": 1, "reward": 0.5}) + "\n"


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "model.safetensors", "model-00001-of-00002.safetensors",
                                  "pytorch_model.bin", "trees.jsonl"])  # fmt: skip
def test_weights_and_trees_of_another_run_are_refused_by_name(tmp_path, name):
    begin_in(str(tmp_path), None, None)
    (tmp_path / name).write_bytes(b"1")
    with pytest.raises(UserError, match=rf"holds another run \({name}\).*name another output_dir.*auto"):
        begin_in(str(tmp_path), None, None)


def test_a_log_counts_once_it_has_a_step(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"event": "start", "max_steps": 9}\n{"st')
    assert results_in(tmp_path) == []
    (tmp_path / "log.jsonl").write_text('{"event": "start"}\n' + STEP)
    with pytest.raises(UserError, match="another run"):
        begin_in(str(tmp_path), None, "false")


def test_a_requeued_job_without_a_checkpoint_sets_the_old_results_aside(tmp_path, capsys):
    for number in (1, 2):
        for name in ("log.jsonl", "adapter_model.safetensors", "adapter_config.json", "trainer_state.json"):
            (tmp_path / name).write_text(STEP)
        (tmp_path / "notes.txt").write_text("mine")
        begin_in(str(tmp_path), None, "auto")
        aside = tmp_path / f"earlier-{number}"
        assert (aside / "log.jsonl").read_text() == STEP and (aside / "adapter_config.json").exists()
        assert f"earlier results are in {aside}" in capsys.readouterr().out
        assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"notes.txt"}
    assert set_aside(tmp_path) is None


def test_a_run_goes_on_in_the_folder_of_its_checkpoint_and_in_no_other(tmp_path):
    used, other = tmp_path / "used", tmp_path / "other" / "checkpoint-2"
    used.mkdir(), other.mkdir(parents=True)
    (used / "log.jsonl").write_text(STEP)
    begin_in(str(used), str(used / "checkpoint-2"), "auto")
    begin_in(str(used), str(used), str(used))
    with pytest.raises(UserError, match="another run"):
        begin_in(str(used), str(other), str(other))
    assert (used / "log.jsonl").exists()


def test_a_trainer_refuses_a_folder_that_another_wrote_to(tiny_text, tmp_path):
    first = text_trainer(tiny_text, tmp_path)
    first.train()
    first.train()  # the run that wrote it goes on
    log = (tmp_path / "log.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"holds another run \(log\.jsonl\).*pass resume_from_checkpoint"):
        text_trainer(tiny_text, tmp_path).train()
    assert (tmp_path / "log.jsonl").read_bytes() == log
