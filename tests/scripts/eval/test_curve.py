"""scripts/eval/curve.py: a logged value over training as text."""

import json

import pytest
import report_cases as cases

from scripts.eval import curve as script


def test_rows_of_a_run_that_still_trains(tmp_path, capsys):
    entries = [{"step": step, "reward": step / 10} for step in range(1, 9)]
    cases.write_lines(tmp_path / "log.jsonl", [{"event": "start"}, *entries])
    with (tmp_path / "log.jsonl").open("a") as out:
        out.write('{"step": 9, "rew')
    assert script.main([str(tmp_path), "--rows", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["1-4", "0.2500"], ["5-8", "0.6500"]]
    assert lines[2].count("#") == script.WIDTH


def test_what_is_no_number_and_no_checkpoint_is_passed_over(tmp_path, capsys):
    history = [{"step": 1, "reward": float("nan")}, {"step": 2, "reward": 0.5}, {"step": 3, "reward": None}, {"x": 1}]
    for name in ("checkpoint-10", "checkpoint-best"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert script.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["2-2", "0.5000", "#" * script.WIDTH]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rows", "0"], "--rows 0: it must be at least 1"),
        (["--key", "rewrad"], "has no logged 'rewrad': logged are reward"),
    ],
)
def test_mistakes_give_one_sentence(tmp_path, capsys, flags, said):
    cases.write_lines(tmp_path / "log.jsonl", [{"step": 1, "reward": 0.5}])
    assert script.main([str(tmp_path), *flags]) == 2
    assert said in capsys.readouterr().err
    assert script.main([str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_state_that_is_cut_off_holds_no_values(tmp_path, capsys):
    (tmp_path / "trainer_state.json").write_text('{"log_hi')
    assert script.main([str(tmp_path)]) == 2
    assert "logged are no values at all" in capsys.readouterr().err
