"""trees.jsonl: what a line holds, when one is written, and what a full disk or a restart does."""

import base64
import io
import json
import math
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from trainer_cases import chain_tree, thought_tree

from model.vlm_module import EncodedPrompt
from task.task_loader import load_tasks
from trainer.logs.tree_log import TreeLog, parse_log_trees, token_texts
from trainer.rollout import Rollout
from trainer.tree import PROMPT, Node, Tree

RECORDS = [{"question_type": "test", "question": "Where?", "images": ["/data/a.png"]}]


def letters(ids):
    return "".join(chr(96 + i) for i in ids)


def prompt(size=(84, 84)):
    return EncodedPrompt([1, 2], torch.zeros(2), 2, image_sizes=[size], processed_sizes=[(112, 112)])


def small_rollout() -> Rollout:
    tree = thought_tree("p0", [[1, 2], [3]], [[[4], [5, 6]], []])  # the second thought never closed
    tree.nodes[0].entropies = [0.51234, 0.1]
    return Rollout.from_trees([prompt()], [tree], 4)


def write(log, step=0, rollout=None, advantages=(1.0, -1.0, 0.5, 0.5), totals=(1.0, 0.0, 0.25, 0.25), records=RECORDS):
    rewards = {"accuracy": [*totals[:-1], math.nan], "format": [1.0] * len(totals)}
    log.write(step, rollout or small_rollout(), records, rewards, totals, list(advantages), letters)


def lines(folder):
    return [json.loads(line) for line in (folder / "trees.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_size_that_answers_are_drawn_in_is_the_plane_of_the_models_coordinates(tmp_path):
    tasks = load_tasks(coordinate_frame="norm1000")
    records = [RECORDS[0] | {"question_type": "trajectory-sharerobot"}]
    write(TreeLog(tmp_path, every=1, tasks=tasks), records=records)
    assert (lines(tmp_path)[0]["image_size"], lines(tmp_path)[0]["processed_size"]) == ([84, 84], [1000, 1000])


def test_a_line_holds_prompt_nodes_and_rows(tmp_path):
    write(TreeLog(tmp_path, every=1), step=7)
    (entry,) = lines(tmp_path)
    assert (entry["step"], entry["prompt_id"], entry["question"], entry["images"]) == (
        7,
        "p0",
        "Where?",
        ["/data/a.png"],
    )
    assert (entry["image_size"], entry["processed_size"], entry["question_type"]) == ([84, 84], [112, 112], "test")
    first, second, left, right = entry["nodes"]
    assert (first["text"], first["tokens"], first["entropies"], first["count"]) == ("ab", ["a", "b"], [0.512, 0.1], 2)
    assert [node["parent"] for node in entry["nodes"]] == [PROMPT, PROMPT, 0, 0]
    assert (second["status"], second["kind"], right["kind"]) == ("unclosed", "thought", "answer")
    assert (left["advantage"], right["advantage"], second["advantage"]) == (1.0, -1.0, 0.5)
    assert (first["advantage"], first["reward"]) == (0.0, 0.5)
    assert [row["leaf"] for row in entry["rows"]] == [2, 3, 1, 1]
    assert entry["rows"][0] == {"leaf": 2, "rewards": {"accuracy": 1.0, "format": 1.0}, "reward": 1.0, "advantage": 1.0}
    assert entry["rows"][3]["rewards"]["accuracy"] is None
    assert "cut" not in entry


def test_what_the_prompt_opened_and_what_chose_the_forks_is_logged_where_it_exists(tmp_path):
    write(TreeLog(tmp_path, every=1))
    rollout, rewards = small_rollout(), {"accuracy": [1.0] * 4}
    log = TreeLog(tmp_path, every=1, opened="<think>\n")
    log.write(1, rollout, RECORDS, rewards, [1.0] * 4, [0.0] * 4, letters, forked_by="entropy")
    plain, opened = lines(tmp_path)
    assert "opened" not in plain and "forked_by" not in plain
    assert (opened["opened"], opened["forked_by"]) == ("<think>\n", "entropy")


def test_credit_of_a_token_belongs_to_the_node_that_owns_it(tmp_path):
    per_token = [[2.0, 2.0, 1.0, 99.0], [2.0, 2.0, -1.0, -1.0], [0.5], [0.5]]  # 99: padding
    write(TreeLog(tmp_path, every=1), advantages=per_token)
    (entry,) = lines(tmp_path)
    assert [node["advantage"] for node in entry["nodes"]] == [2.0, 0.5, 1.0, -1.0]
    assert [row["advantage"] for row in entry["rows"]] == [1.0, -1.0, 0.5, 0.5]


def test_rewards_that_are_no_numbers_become_null(tmp_path):
    write(TreeLog(tmp_path, every=1), totals=(math.nan, math.inf, 0.0, 0.0), advantages=(math.nan, 0.0, 0.0, 0.0))
    text = (tmp_path / "trees.jsonl").read_text(encoding="utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text
    (entry,) = lines(tmp_path)
    assert [row["reward"] for row in entry["rows"]] == [None, None, 0.0, 0.0]
    assert entry["nodes"][2]["advantage"] is None


def test_every_kind_of_tree_is_written(tmp_path):
    chains = Rollout.from_trees([prompt()], [chain_tree("c", [[1], [2], [3], [4]])], 4)
    agent = Tree("a", [Node(PROMPT, "step", [1]), Node(0, "observation", [2], sampled=False), Node(1, "step", [3])])
    agent.nodes[1].extra = {"error": "time", "seconds": 3}
    failed = Tree("f", [Node(PROMPT, "thought", [1], sampled=False, status="failed")])
    log = TreeLog(tmp_path, every=1)
    write(log, rollout=chains)
    write(log, step=1, rollout=Rollout([prompt()], [agent], [0] * 4, [2] * 4))
    write(log, step=2, rollout=Rollout([prompt()], [failed], [0] * 4, [0] * 4))
    assert [[node["kind"] for node in entry["nodes"]] for entry in lines(tmp_path)] == [
        ["segment"] * 4,
        ["step", "observation", "step"],
        ["thought"],
    ]
    assert [node["sampled"] for node in lines(tmp_path)[1]["nodes"]] == [True, False, True]
    assert [node.get("error") for node in lines(tmp_path)[1]["nodes"]] == [None, "time", None]


def test_steps_between_are_left_out_and_a_late_generation_makes_up_for_its_multiple(tmp_path):
    log = TreeLog(tmp_path, every=4)
    for step in (0, 2, 4, 6, 9, 11, 12):
        assert log.due(step) == (step in (0, 4, 9, 12)), step
        write(log, step)
    assert [entry["step"] for entry in lines(tmp_path)] == [0, 4, 9, 12]


def test_a_new_run_starts_afresh_and_a_resumed_one_goes_on_after_a_half_line(tmp_path):
    write(TreeLog(tmp_path, every=1), step=3)
    with (tmp_path / "trees.jsonl").open("a") as out:
        out.write('{"step": 4, "promp')
    write(TreeLog(tmp_path, every=1), step=4)
    assert [entry["step"] for entry in lines(tmp_path)] == [3, 4]
    write(TreeLog(tmp_path, every=1), step=0)
    assert [entry["step"] for entry in lines(tmp_path)] == [0]


def test_a_tree_that_is_too_large_says_what_it_lost(tmp_path):
    tree = thought_tree("big", [[1] * 5000, [3]], [[[4], [5]], []])
    tree.nodes[0].entropies = [0.7] * 5000
    rollout = Rollout.from_trees([prompt()], [tree], 4)
    write(TreeLog(tmp_path, every=1, max_tree_bytes=8000), rollout=rollout)
    write(log := TreeLog(tmp_path, every=1, max_tree_bytes=2000), step=1, rollout=rollout)
    without_tokens, shortened = lines(tmp_path)
    assert without_tokens["cut"] == "tokens of 4 nodes"
    assert len(without_tokens["nodes"][0]["text"]) == 5000
    assert without_tokens["nodes"][0]["entropies"] == [0.7]
    assert shortened["cut"] == "tokens of 4 nodes, texts of 1 nodes after 125 characters"
    assert shortened["nodes"][0]["count"] == 5000
    assert len((tmp_path / "trees.jsonl").read_bytes().splitlines()[1]) <= log.max_tree_bytes


def observed_rollout(*pictures) -> Rollout:
    """A step, what it was shown, and the next step."""
    parts = [{"type": "text", "text": "You moved."}, *({"type": "image", "image": picture} for picture in pictures)]
    seen = SimpleNamespace(point=SimpleNamespace(results=[parts]), error=None)
    tree = Tree("seen")
    step = tree.add(Node(PROMPT, "step", [1]))
    below = tree.add(Node(step, "observation", [2, 3], sampled=False, media=prompt() if pictures else None, extra=seen))
    tree.add(Node(below, "step", [4]))
    return Rollout.from_trees([prompt()], [tree], 1)


def test_pictures_of_an_observation_are_logged_small(tmp_path):
    photograph = Image.effect_noise((640, 320), 60).convert("RGB")
    drawing = Image.new("RGB", (112, 84), (225, 238, 250))
    write(TreeLog(tmp_path, every=1), rollout=observed_rollout(photograph, drawing), advantages=[1.0], totals=[1.0])
    nodes = lines(tmp_path)[0]["nodes"]
    assert ["pictures" in node for node in nodes] == [False, True, False]
    photograph, drawing = nodes[1]["pictures"]
    assert photograph.startswith("data:image/jpeg;base64,") and drawing.startswith("data:image/png;base64,")
    shown = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in (photograph, drawing)]
    assert [picture.size for picture in shown] == [(160, 80), (112, 84)]
    assert shown[1].convert("RGB").getpixel((50, 50)) == (225, 238, 250)


def test_pictures_are_the_first_to_go_from_a_tree_that_is_too_large(tmp_path):
    pictures = [Image.effect_noise((160, 160), 80).convert("RGB") for _ in range(2)]
    log = TreeLog(tmp_path, every=1, max_tree_bytes=4000)
    write(log, rollout=observed_rollout(*pictures), advantages=[1.0], totals=[1.0])
    (entry,) = lines(tmp_path)
    assert entry["cut"] == "pictures of 1 nodes"
    assert entry["nodes"][1]["tokens"] == ["b", "c"] and "pictures" not in entry["nodes"][1]


def test_a_full_file_ends_with_one_sentence(tmp_path, capsys):
    log = TreeLog(tmp_path, every=1, max_file_bytes=2500)
    for step in range(6):
        write(log, step)
    entries = lines(tmp_path)
    assert 1 <= len(entries) - 1 < 6
    assert "later trees are not logged" in entries[-1]["cut"]
    assert capsys.readouterr().err.count("later trees") == 1
    assert not log.due(100)


def test_a_file_that_cannot_be_written_does_not_stop_training(tmp_path, capsys):
    (tmp_path / "trees.jsonl").mkdir()
    log = TreeLog(tmp_path, every=1)
    write(log, step=1)
    write(log, step=2)
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_character_of_several_tokens_stands_with_the_last():
    parts = {1: b"a", 2: "é".encode()[:1], 3: "é".encode()[1:], 4: b"\xff"}
    decode = lambda ids: b"".join(parts[i] for i in ids).decode("utf-8", "replace")  # noqa: E731
    assert token_texts([1, 2, 3, 1], decode) == ["a", "", "é", "a"]
    assert "".join(token_texts([2, 3, 2], decode)) == decode([2, 3, 2])
    assert "".join(token_texts([4] * 20, decode)) == decode([4] * 20)


def test_surrogates_of_a_record_can_be_written(tmp_path):
    write(TreeLog(tmp_path, every=1), records=[{"question": "\ud800 odd", "images": None}])
    assert lines(tmp_path)[0]["question"] == "\ud800 odd"


@pytest.mark.parametrize(
    ("text", "every"), [(None, None), ("", None), ("none", None), ("every:1", 1), ("every:20", 20)]
)
def test_the_setting_is_read(text, every):
    assert parse_log_trees(text) == every


@pytest.mark.parametrize("text", ["every", "every:0", "every:-1", "every:1.5", "20", "each:5", "every:²"])
def test_a_setting_that_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match=r"log_trees=.*give every:N.* or none$"):
        parse_log_trees(text)
