"""A frozen lake as a picture: an agent moves step by step and sees the board again after each move.

Data: records whose answer is a board, a list of rows of S (start), F (ice), H (hole) and G (goal), as
scripts/data/make_gridworld.py makes them, with the first picture. The environment is gymnasium's FrozenLake (MIT),
without slipping, so it is deterministic. It is stateful, so branches of a tree copy it (`_fork`).

Reward: 1.0 if the moves that were carried out reach the goal, else 0.0. They are read from the completion (moves that
got an observation) and replayed on the record's board; what the model claims does not count. `environment_args` may
name a cost of each turn, {"turn_cost": 0.05}, which the environment gives beside this reward.
"""

import copy
import math
from statistics import fmean

from task.agents.text import UNREADABLE, cost_metrics, form_reward, tag_action, tag_answer
from task.errors import UserError
from task.parsing.answers import parse_value
from task.runners.optional import need

MOVES = {"left": 0, "down": 1, "right": 2, "up": 3}  # FrozenLake's numbers
CELL = 28  # side of a cell in pixels: one visual token of Qwen2.5-VL
COLOURS = {"S": (225, 238, 250), "F": (225, 238, 250), "H": (35, 45, 70), "G": (70, 170, 90)}

TASK_CONFIG = {
    "task_type": "gridworld",
    "grpo_template": (
        "{Question} The red dot is you. Reach the green cell and keep off the dark ones, where the ice has holes. "
        "Think inside <think> </think>, then move one cell with <move> left </move>, <move> right </move>, "
        "<move> up </move> or <move> down </move>; you are then shown the board again between <information> and "
        "</information>. When you are there, or can go no further, write <answer> done </answer>."
    ),
    "description": "a walk over a frozen lake with holes, one move per turn, seen in pictures",
    "input_format": "a picture of the board",
    "output_format": "turns of <think> and <move>, then <answer> done </answer>",
    "frame": "none",
}

SELF_TEST = {
    "record": {"answer": ["SF", "HG"]},
    "right": (
        "<think>go</think><move>right</move>\n\n<information>You moved right.</information>\n\n<think>on</think>"
        "<move> down </move>\n\n<information>You are there.</information>\n\n<think>there</think><answer>done</answer>"
    ),
    "wrong": (
        "<think>go</think><move>down</move>\n\n<information>You fell in.</information>\n\n<think>oh</think>"
        "<answer>done</answer>"
    ),
}

METRICS = {"success": "higher", "fell_share": "lower", "moves": "lower", "turns": "lower", "tool_calls": "lower"}


class GridworldEnvironment:
    """One tool, `move`; the state is the walker's position."""

    def __init__(self):
        self._world = None
        self._cell, self._over, self._moves, self._cost = 0, False, 0, 0.0

    def reset(self, answer=None, id=None, turn_cost: float = 0.0, **row) -> None:
        """Starts on the board of a record; every turn costs `turn_cost` of the reward."""
        need("gymnasium", "gridworld")
        if isinstance(turn_cost, bool) or not isinstance(turn_cost, int | float) or not 0 <= turn_cost < math.inf:
            raise UserError(f"environment_args: turn_cost is {turn_cost!r}: give a number of at least 0.")
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

        self._world = FrozenLakeEnv(desc=board_of(answer, id), is_slippery=False)
        self._cell, _ = self._world.reset(seed=0)
        self._over, self._moves, self._cost = False, 0, float(turn_cost)

    def move(self, direction: str) -> list:
        """Moves one cell, and shows the board.

        Args:
            direction: left, right, up or down.

        Returns:
            What happened, and a picture of the board.
        """
        direction = direction.strip().lower()
        if direction not in MOVES:
            return [{"type": "text", "text": f"There is no such direction; the directions are {', '.join(MOVES)}."}]
        if self._over:
            return [{"type": "text", "text": "The walk is over."}]
        before = self._cell
        self._cell, _, self._over, _, _ = self._world.step(MOVES[direction])
        self._moves += 1
        outcome = f"You moved {direction}." if self._cell != before else "There is the edge: you stand where you stood."
        if self._over:
            outcome = "You are there." if self.get_reward() else "You fell in."
        return [{"type": "text", "text": f"{outcome} "}, {"type": "image", "image": self._picture()}]

    def get_reward(self) -> float:
        """1.0 on the goal, else 0.0."""
        return float(self._rows()[self._cell // self._world.ncol][self._cell % self._world.ncol] == "G")

    def _turn_reward(self) -> float:
        return -self._cost

    def _fork(self):
        return copy.deepcopy(self)

    def _rows(self) -> list[str]:
        return ["".join(cell.decode() for cell in row) for row in self._world.desc]

    def _picture(self):
        return draw(self._rows(), divmod(int(self._cell), self._world.ncol))


def make_environment():
    return GridworldEnvironment()


def draw(rows: list[str], place: tuple[int, int]):
    """The board as an RGB picture, CELL x CELL pixels per cell, with the walker as a red dot at (row, column)."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (CELL * len(rows[0]), CELL * len(rows)))
    pen = ImageDraw.Draw(picture)
    for y, row in enumerate(rows):
        for x, kind in enumerate(row):
            pen.rectangle(_box(y, x, 0), fill=COLOURS[kind], outline=(150, 165, 180))
    pen.ellipse(_box(*place, 7), fill=(215, 40, 40))
    return picture


def board_of(answer, record_id=None) -> list[str]:
    """The rows of a board. UserError if the answer is not a board."""
    answer = parse_value(answer) if isinstance(answer, str) else answer  # JSON text, as tables hold it
    rows = answer if isinstance(answer, list) and answer else [""]
    text = "".join(row if isinstance(row, str) else "?" for row in rows)
    shaped = all(isinstance(row, str) and len(row) == len(rows[0]) for row in rows)
    if not shaped or not text or set(text) - set("SFHG") or text.count("S") != 1 or "G" not in text:
        raise UserError(
            f"record {record_id}: the answer {str(answer)[:80]!r} is not a board: give rows of S, F, H and G of "
            'equal length, with one S and at least one G, such as ["SFF", "FHF", "FFG"].'
        )
    return rows


def played(completion: str, answer, record_id=None, thought_end: str = "</think>") -> tuple[bool, bool, int]:
    """(goal reached, fell into a hole, number of moves), from the moves of a completion that were carried out."""
    world = GridworldEnvironment()
    world.reset(answer=answer, id=record_id)
    for before in completion.split("<information>")[:-1]:
        turn = before.rpartition("</information>")[2].rpartition(UNREADABLE)[2]
        action = tag_action(turn, ["move"], thought_end=thought_end)
        if action is not None and action[0] == "move":
            world.move(action[1])
    reached = world.get_reward() == 1
    return reached, world._over and not reached, world._moves


def format_reward(completion, sol, **kw):
    """1.0 if the turns read think (move information think)* answer, with nothing in between; else 0.0."""
    return form_reward(completion, ["move"], kw.get("thought_end", "</think>"))


def accuracy_reward(completion, sol, **kw):
    """(0.0 or 1.0, {"moves", "fell"}); None without a board."""
    if sol is None:
        return None
    reached, fell, moves = played(completion, sol, kw.get("id"), kw.get("thought_end", "</think>"))
    return float(reached), {"moves": moves, "fell": float(fell)}


def parse_answer(completion, **kw):
    """The text of the last answer block, or None."""
    return tag_answer(completion, thought_end=kw.get("thought_end", "</think>"))


def compute_metrics(predictions, **kw):
    """success, fell_share, mean moves of the walks that reached the goal, and mean turns and tool_calls."""
    rows = [row for row in predictions if row["status"] != "load_error" and row["answer"] is not None]
    if not rows:
        return {}
    thought_end = kw.get("thought_end", "</think>")
    walks = [played(row["completion"] or "", row["answer"], row["id"], thought_end) for row in rows]
    metrics = {"success": fmean(walk[0] for walk in walks), "fell_share": fmean(walk[1] for walk in walks)}
    reached = [walk[2] for walk in walks if walk[0]]
    metrics |= {"moves": fmean(reached)} if reached else {}
    return metrics | cost_metrics(rows)


def _box(y: int, x: int, margin: int) -> tuple[int, int, int, int]:
    return x * CELL + margin, y * CELL + margin, (x + 1) * CELL - 1 - margin, (y + 1) * CELL - 1 - margin
