"""The gridworld's warm start: boards for training and tests differ, and the teacher walks with its faults."""

import random

import pytest

pytest.importorskip("gymnasium")
from dataset.dataset_grpo import build_dataset, load_media, read_row
from scripts.data.make_gridworld import boards, in_part, way, write_records
from scripts.demo.learn_to_walk import BOARDS, IGNORED, at, best_moves, demonstrate, look, walk
from task.gridworld import accuracy_reward, format_reward
from task.task_loader import load_tasks

ROWS = ["SHG", "FFF", "HFH"]


def test_no_board_is_in_both_parts():
    train, test = ({tuple(rows) for rows in boards(200, seed=3, part=part, **BOARDS)} for part in ("train", "test"))
    assert len(train) == len(test) == 200 and not train & test
    for rows in boards(60, seed=4, **BOARDS):
        assert in_part(rows, "train") != in_part(rows, "test")


def test_the_best_moves_are_the_first_ones_of_shortest_paths():
    assert way(ROWS) == 4
    found = [best_moves(ROWS, place) for place in [(0, 0), (1, 0), (1, 1), (1, 2)]]
    assert found == [["down"], ["right"], ["right"], ["up"]]
    assert sorted(best_moves(["SF", "FG"], (0, 0))) == ["down", "right"]
    assert best_moves(["SHG"], (0, 0)) == []


def text_of(pieces) -> str:
    return "".join(part["text"] for part, _ in pieces if part["type"] != "image")


def test_without_faults_the_teacher_takes_a_shortest_path():
    for number, rows in enumerate(boards(30, seed=5, part="train", **BOARDS)):
        said = text_of(demonstrate(rows, random.Random(number), flawed=False))
        assert accuracy_reward(said, rows)[0] == 1 and accuracy_reward(said, rows)[1]["moves"] == way(rows)
        assert format_reward(said, rows) == 1


def test_with_faults_it_falls_strays_and_gives_up():
    rng, known = random.Random(0), boards(100, seed=6, part="train", **BOARDS)
    walks = [accuracy_reward(text_of(demonstrate(rows, rng, flawed=True)), rows) for rows in known for _ in range(2)]
    reached, fell = (sum(values) / len(walks) for values in ([w for w, _ in walks], [x["fell"] for _, x in walks]))
    assert 0.4 < reached < 0.65 and fell > 0.15 and reached + fell < 0.9


def test_a_lesson_is_the_real_prompt_and_its_labels_are_what_the_teacher_wrote(tiny_vlm, tmp_path):
    module, _, processor = tiny_vlm
    module.processor = processor
    whole, labels = walk(module, ROWS, random.Random(1), flawed=False)
    write_records(tmp_path, [ROWS], "lake")
    record = read_row(build_dataset([str(tmp_path / "gridworld.yaml")], load_tasks())[0])
    images, _ = load_media(record)
    prompt = module.encode(record["messages"], images).ids
    assert list(whole.ids[: len(prompt)]) == list(prompt) and set(labels[: len(prompt)]) == {IGNORED}
    own = module.tokenizer.decode([label for label in labels if label != IGNORED])
    assert own.count("<think>") == own.count("</think>") == 5 and "<information>" not in own
    assert own.endswith("<answer> done </answer><|im_end|>")
    assert len(whole.media["image_grid_thw"]) == 1 + 4 and at(ROWS, "G") == (0, 2)


def test_a_look_is_learnt_from_its_words(tiny_vlm):
    module, _, processor = tiny_vlm
    module.processor = processor
    whole, labels = look(module, ROWS, random.Random(2))
    learnt = module.tokenizer.decode([label for label in labels if label != IGNORED])
    assert len(whole.ids) == len(labels) and any(word in learnt for word in ("left", "right", "up", "down"))
