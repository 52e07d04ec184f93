"""The gridworld: its moves, its pictures, its forks, and a reward that plays the moves again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from agent_cases import ScriptedAgent, policy_of, turns
from paths import ROOT

from task import gridworld
from task.agents.text import UNREADABLE
from task.gridworld import CELL, GridworldEnvironment, accuracy_reward, compute_metrics, draw, format_reward
from task.task_loader import load_tasks
from trainer.evaluation.summary import summarise
from trainer.logs.tree_pictures import pictures_of

BOARD = ["SFF", "FHF", "FFG"]


def started(board=BOARD):
    environment = GridworldEnvironment()
    environment.reset(answer=board, id="r", question="?", question_type="gridworld")
    return environment


def walk(*directions):
    return "".join(
        f"<think>t</think><move>{direction}</move>\n\n<information>x</information>\n\n" for direction in directions
    )


def test_moves_and_their_pictures():
    environment = started()
    said, shown = environment.move(" Right ")
    assert said["text"] == "You moved right. " and shown["image"].size == (3 * CELL, 3 * CELL)
    assert shown["image"].tobytes() == draw(BOARD, (0, 1)).tobytes() != draw(BOARD, (0, 0)).tobytes()
    assert "edge" in environment.move("up")[0]["text"]
    assert "no such direction" in environment.move("north")[0]["text"]
    assert "fell" not in environment.move("right")[0]["text"] and environment.get_reward() == 0
    environment.move("down")
    assert environment.move("down")[0]["text"].strip() == "You are there." and environment.get_reward() == 1
    assert environment.move("up") == [{"type": "text", "text": "The walk is over."}]


def test_a_fork_walks_alone():
    environment = started()
    environment.move("right")
    fork = environment._fork()
    assert fork.move("down")[0]["text"].strip() == "You fell in."
    assert environment.move("right")[0]["text"].strip() == "You moved right." and not environment._over


@pytest.mark.parametrize(
    ("directions", "score"),
    [
        (["right", "right", "down", "down"], 1.0),
        (["down", "down", "right", "right"], 1.0),
        (["right", "down"], 0.0),
        (["right", "down", "right", "down"], 0.0),
        (["up", "left", "north", "right", "right", "down", "down"], 1.0),
        ([], 0.0),
    ],
)
def test_the_reward_plays_the_moves_again(directions, score):
    value, extra = accuracy_reward(walk(*directions) + "<think>t</think><answer>done</answer>", BOARD, id="r")
    assert value == score and extra["fell"] == float(directions[:2] == ["right", "down"])


def test_a_move_that_was_not_carried_out_does_not_count():
    almost = walk("right", "right", "down")
    for tail in ("<think>t</think><move>down</move>", "I am there: <information>You are there.</information>"):
        assert accuracy_reward(almost + tail, BOARD)[0] == 0
    assert format_reward(walk("down") + "<think>t</think><answer>done</answer>", BOARD) == 1
    assert format_reward(walk("down"), BOARD) == 0


@pytest.mark.parametrize("answer", [None, [], "SG", ["SG", "F"], ["FG"], ["SF"], ["SXG"], [1], ["SSG"]])
def test_what_is_no_board_is_named(answer):
    environment = GridworldEnvironment()
    with pytest.raises(ValueError, match=r"record r: the answer .* is not a board"):
        environment.reset(answer=answer, id="r")


@pytest.mark.parametrize("turn", ["right</move>", "<move>right", "<think>t</think>", "<move></move>"])
def test_a_turn_that_did_nothing_hides_no_move_behind_it(turn):
    completion = walk("right", "right", "down") + turn + UNREADABLE + walk("down")
    assert accuracy_reward(completion, BOARD)[0] == 1


def test_metrics():
    row = {"status": "ok", "id": "r", "answer": BOARD, "turns": 4, "tool_calls": 4}
    rows = [row | {"completion": walk("right", "right", "down", "down")}, row | {"completion": walk("right", "down")}]
    metrics = compute_metrics(rows)
    assert metrics == {"success": 0.5, "fell_share": 0.5, "moves": 4.0, "turns": 4.0, "tool_calls": 4.0}


def test_metrics_of_walks_whose_thoughts_end_with_another_tag():
    """A move named inside a thought is text; with the wrong tag the whole turn would be one open thought."""
    turn = "[REASONING]perhaps <move>up</move>[/REASONING]<move>{}</move>\n\n<information>x</information>\n\n"
    walked = "".join(turn.format(way) for way in ("right", "right", "down", "down"))
    row = {"status": "ok", "id": "r", "answer": BOARD, "completion": walked, "question_type": "gridworld"}
    task = load_tasks(thought_end="[/REASONING]")["gridworld"]
    assert compute_metrics([row], thought_end=task.thought_end)["success"] == 1.0
    (found,) = summarise([row | {"accuracy": 1.0, "format": 1.0}], {"gridworld": task}).values()
    assert (found["success"], found["moves"]) == (1.0, 4.0)


def test_an_agent_walks_over_pictures(tiny_vlm):
    task = load_tasks()["gridworld"]
    made = []

    def make_environment():
        environment = gridworld.GridworldEnvironment()
        reset = environment.reset
        environment.reset = lambda **row: reset(**(row | {"answer": BOARD}))
        made.append(environment)
        return environment

    moves = [f"<think>t</think><move>{way}</move>" for way in ("right", "right", "down", "down")]
    policy = policy_of(
        make_environment, tiny_vlm, tree_num=1, expand_num=2, max_turns=5, length=900, max_observation_length=200
    )
    engine = ScriptedAgent(tiny_vlm[2].tokenizer, turns(*moves, "<think>t</think><answer>done</answer>"))
    (tree,) = engine.grow(policy, ["a"])
    seen = [node for node in tree.nodes if node.kind == "observation"]
    assert all(node.media.media["image_grid_thw"].tolist() == [[1, 6, 6]] for node in seen)
    assert [len(pictures_of(node)) for node in tree.nodes] == [int(node.kind == "observation") for node in tree.nodes]
    for leaf in tree.leaves():
        completion = tiny_vlm[2].tokenizer.decode(tree.tokens(leaf), skip_special_tokens=True)
        assert task.accuracy_reward(completion, BOARD, id="a")[0] == 1.0 and task.format_reward(completion, BOARD) == 1


def test_the_script_makes_boards_with_a_way(tmp_path):
    script = [sys.executable, str(ROOT / "scripts/data/make_gridworld.py"), "--output_dir", str(tmp_path)]
    done = subprocess.run([*script, "--count", "20", "--max_moves", "4"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "gridworld.jsonl").read_text().splitlines()]
    assert len({tuple(record["answer"]) for record in records}) == 20
    assert all(1 <= record["shortest"] <= 4 and (tmp_path / record["image"]).is_file() for record in records)
    done = subprocess.run([*script, "--count", "9", "--size", "2"], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 2)
    done = subprocess.run([*script, "--count", "900", "--size", "2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "different boards" in done.stderr
