"""scripts/demo/make_puzzles.py: short puzzles that their own verifiers accept, in splits that share no question."""

import pytest

from dataset.dataset_grpo import build_dataset, read_row
from scripts.demo import make_puzzles
from task.task_loader import load_tasks

reasoning_gym = pytest.importorskip("reasoning_gym")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("puzzles")
    assert make_puzzles.main(["--out", str(folder), "--warm", "40", "--train", "30", "--test", "21"]) == 0
    return folder


def records(folder, split: str) -> list[dict]:
    return [read_row(row) for row in build_dataset(folder / f"{split}.yaml", load_tasks())]


def test_splits_have_their_sizes_and_share_no_question(folder):
    found = {split: records(folder, split) for split in ("warm", "train", "test")}
    assert {split: len(rows) for split, rows in found.items()} == {"warm": 40, "train": 30, "test": 21}
    questions = [row["question"] for rows in found.values() for row in rows]
    assert len(set(questions)) == len(questions) == 91


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_generator_of_each_record_accepts_its_answer(folder, split):
    for row in records(folder, split):
        generator, entry = row["answer"]["dataset"], row["answer"]["entry"]
        assert row["extra"]["kind"] == generator
        assert reasoning_gym.get_score_answer_fn(generator)(entry["answer"], entry) == 1.0


def test_thoughts_of_the_warm_start_end_with_the_answer(folder):
    kinds = set()
    for row in records(folder, "warm"):
        thought, kind = row["extra"]["thought"], row["extra"]["kind"]
        ending = f"= {row['answer']}" if kind == "chain_sum" else f"backward {' '.join(row['answer'])}"
        assert thought.endswith(ending)
        kinds.add(kind)
    assert kinds == {"chain_sum", "spell_backward"}


def test_the_same_command_writes_the_same_records(folder, tmp_path):
    make_puzzles.main(["--out", str(tmp_path), "--warm", "40", "--train", "30", "--test", "21"])
    for split in ("warm", "train", "test"):
        assert (tmp_path / f"{split}.jsonl").read_bytes() == (folder / f"{split}.jsonl").read_bytes()


def test_a_split_of_one_record_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        make_puzzles.main(["--out", str(tmp_path), "--test", "1"])
    assert "at least 2 records each" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
