"""Teaches the tiny Qwen2.5-VL to walk over the gridworld's boards, from an imperfect teacher.

    python scripts/demo/learn_to_walk.py --out runs/gridworld/model            # from scripts/demo/tiny_model
    python scripts/demo/learn_to_walk.py --evaluate runs/gridworld/model       # on boards that no training uses

Two stages: `look` (a picture and one move, without the instruction; the loss covers the words that depend on the
picture, and at the end the whole turn) and `walk` (the real prompt and whole walks; the loss covers what the agent
writes). All boards belong to the part "train" of scripts/data/make_gridworld.py. The faults of the teacher
(`demonstrate`) are deliberate: reinforcement learning has to correct them.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import torch

from dataset.dataset_grpo import build_dataset
from model.loading import load_policy
from scripts.data.make_gridworld import QUESTION, boards, way, write_records
from scripts.demo import make_tiny_model
from task.gridworld import MOVES, TASK_CONFIG, GridworldEnvironment, draw
from task.task_loader import load_tasks
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.evaluation.predict import predict
from trainer.policies.agent.build import agent_policy
from trainer.policies.agent.step import TreeShape

SHIPPED = ROOT / "scripts" / "demo" / "tiny_model"
BOARDS = {"size": 3, "holes": 0.35, "min_moves": 2, "max_moves": 6}
WALK_SEED, TEST_SEED = 11, 2
STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
HASTY, STRAY, STOP = 0.7, 0.2, 0.1  # probabilities of the teacher's faults, see `demonstrate`
IGNORED = -100
AGENT = SimpleNamespace(max_turns=6, max_turn_length=32, max_observation_length=64, tool_timeout=30.0)
LENGTH = 480  # tokens per completion, observations included


# ---- the teacher


def at(rows: list[str], kind: str) -> tuple[int, int]:
    return next((y, row.index(kind)) for y, row in enumerate(rows) if kind in row)


def direction_words(place: tuple[int, int], goal: tuple[int, int]) -> list[str]:
    """The moves towards the goal, regardless of holes.

    >>> direction_words((0, 2), (1, 0))
    ['down', 'left']
    """
    down, right = goal[0] - place[0], goal[1] - place[1]
    return [word for word, wanted in (("up", down < 0), ("down", down > 0), ("left", right < 0), ("right", right > 0))
            if wanted]  # fmt: skip


def best_moves(rows: list[str], place: tuple[int, int]) -> list[str]:
    """The first moves of the shortest paths to the goal."""
    lengths = {}
    for move, (down, right) in STEPS.items():
        y, x = place[0] + down, place[1] + right
        if 0 <= y < len(rows) and 0 <= x < len(rows[0]) and rows[y][x] != "H":
            there = ["".join("F" if kind == "S" else kind for kind in row) for row in rows]
            if there[y][x] != "G":
                there[y] = there[y][:x] + "S" + there[y][x + 1 :]
            lengths[move] = 0 if rows[y][x] == "G" else way(there)
    known = {move: length for move, length in lengths.items() if length is not None}
    return [move for move, length in known.items() if length == min(known.values())]


def turn_text(rows: list[str], place: tuple[int, int], move: str) -> str:
    where = ", ".join(direction_words(place, at(rows, "G")))
    return f"<think> It is {where}.</think><move>{move}</move>"


def demonstrate(rows: list[str], rng: random.Random, flawed: bool) -> list[tuple[dict, bool]]:
    """A walk as content parts, each with whether the teacher wrote it.

    A hasty teacher (HASTY of the walks) goes straight for the goal and ignores holes; every teacher strays (STRAY of
    the moves are random) and gives up (STOP of the moves). Without faults it takes a shortest path.
    """
    world = GridworldEnvironment()
    world.reset(answer=rows)
    hasty, pieces = flawed and rng.random() < HASTY, []
    for _ in range(AGENT.max_turns):
        place = divmod(int(world._cell), len(rows[0]))
        if world._over or (flawed and rng.random() < STOP):
            break
        wanted = direction_words(place, at(rows, "G")) if hasty else best_moves(rows, place)
        move = rng.choice(list(MOVES) if flawed and rng.random() < STRAY else wanted or list(MOVES))
        pieces.append((text(turn_text(rows, place, move)), True))
        said, *shown = world.move(move)
        pieces += [(text("\n\n<information>"), False), (said, False), *((part, False) for part in shown)]
        pieces.append((text("</information>\n\n"), False))
    ending = "I am there." if world.get_reward() else "It ends."
    return [*pieces, (text(f"<think> {ending}</think><answer> done </answer>"), True)]


def text(of: str) -> dict:
    return {"type": "template", "text": of}


# ---- examples: an encoded conversation and its labels


def encoded(module, pieces: list[tuple[dict, bool]]):
    """(EncodedPrompt, labels) of content parts; the labels cover those that the teacher wrote."""
    whole, labels, pictures = module.encode_observation([part for part, _ in pieces]), [], 0
    for part, own in pieces:
        if part["type"] == "image":
            count = 2 + int(whole.media["image_grid_thw"][pictures].prod()) // 4
            pictures += 1
            labels += [IGNORED] * count
        else:
            ids = module.tokenizer(part["text"], add_special_tokens=False)["input_ids"]
            labels += ids if own else [IGNORED] * len(ids)
    assert len(labels) == len(whole.ids)
    return whole, labels


def look(module, rows: list[str], rng: random.Random, whole_turn: bool = False):
    """One move from any cell of a board; the labels cover the words that depend on the picture, or the whole turn."""
    free = [(y, x) for y, row in enumerate(rows) for x, kind in enumerate(row) if kind in "SF"]
    place = rng.choice(free)
    moves = best_moves(rows, place)
    if not moves:
        return look(module, rows, rng, whole_turn)
    picture = {"type": "image", "image": draw(rows, place)}
    whole, labels = encoded(module, [(picture, False), (text(turn_text(rows, place, rng.choice(moves))), True)])
    words = {token for word in (" right", " left", " up", " down", "right", "left", "up", "down", ",", ".")
             for token in module.tokenizer(word, add_special_tokens=False)["input_ids"]}  # fmt: skip
    return whole, [label if whole_turn or label in words else IGNORED for label in labels]


def walk(module, rows: list[str], rng: random.Random, flawed: bool):
    """A whole walk below the real prompt."""
    question = TASK_CONFIG["grpo_template"].replace("{Question}", QUESTION)
    content = [{"type": "image"}, {"type": "text", "text": question}]
    before, _, after = module.render([{"role": "user", "content": content}]).partition(
        "<|vision_start|><|image_pad|><|vision_end|>"
    )
    picture = {"type": "image", "image": draw(rows, at(rows, "S"))}
    prompt = [(text(before), False), (picture, False), (text(after), False)]
    return encoded(module, [*prompt, *demonstrate(rows, rng, flawed), (text("<|im_end|>"), True)])


# ---- training


def loss_of(module, model, rows: list) -> torch.Tensor:
    """Mean cross-entropy of the labelled tokens; rows are padded on the right, which a causal model ignores."""
    width = max(len(labels) for _, labels in rows)
    ids, mask, targets = (torch.full((len(rows), width), fill) for fill in (0, 0, IGNORED))
    positions = torch.zeros(3, len(rows), width, dtype=torch.long)
    for i, (whole, labels) in enumerate(rows):
        ids[i, : len(labels)], targets[i, : len(labels)] = torch.tensor(whole.ids), torch.tensor(labels)
        positions[:, i, : len(labels)], mask[i, : len(labels)] = whole.position_ids, 1
    media = module.batch_media([whole for whole, _ in rows])
    learnt = targets[:, 1:] != IGNORED
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **media}
    hidden = model.model(**inputs).last_hidden_state[:, :-1]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learnt]), targets[:, 1:][learnt])


def train(module, model, title: str, lesson, steps: int, batch: int, lr: float) -> None:
    """`steps` steps of `batch` examples of `lesson(step)`, with AdamW and a cosine schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    began, losses = time.time(), []
    for step in range(steps):
        loss = loss_of(module, model, [lesson(step) for _ in range(batch)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            mean = sum(losses[-50:]) / 50
            print(f"{title} {step + 1}/{steps}  loss {mean:.4f}  {time.time() - began:.0f} s", flush=True)


def teach(args) -> None:
    module, model, processor = load_policy(str(args.start), dtype="float32")
    module.processor = processor
    rng = random.Random(f"walks {args.seed}")
    known = boards(2000, seed=WALK_SEED + args.seed, part="train", **BOARDS)
    model.train()

    def looking(step):
        return look(module, rng.choice(known), rng, whole_turn=step >= args.look_steps - args.turn_steps)

    def walking(step):
        return walk(module, rng.choice(known), rng, flawed=step >= args.walk_steps - args.flawed_steps)

    train(module, model, "look", looking, args.look_steps, 32, 1e-3)
    train(module, model, "walk", walking, args.walk_steps, 8, 1e-3)
    make_tiny_model.save(model, args.out)


# ---- evaluation


@torch.no_grad()
def measure(folder: Path, temperature: float, count: int) -> dict[str, float]:
    """The task's metrics on `count` boards of the part "test", one walk each."""
    tasks = load_tasks()
    module, model, processor = load_policy(str(folder), dtype="float32")
    ends, never = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
    engine = TransformersEngine(model.eval(), module, module.tokenizer, Sampling(temperature=temperature), ends, never)

    def policy_of(task, records):
        return agent_policy(AGENT, records, tasks, module.tokenizer, module, {}, shape=TreeShape(1), length=LENGTH)

    with tempfile.TemporaryDirectory() as made:
        write_records(Path(made), boards(count, seed=TEST_SEED, part="test", **BOARDS), "lake")
        rows = build_dataset([str(Path(made) / "gridworld.yaml")], tasks)
        limits = {"max_new_tokens": LENGTH, "batch_size": 64, "seed": 0}
        found = predict(engine, module, rows, tasks, policy_of=policy_of, **limits)
    return tasks["gridworld"].compute_metrics(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="train, and write the model to this folder")
    action.add_argument("--evaluate", type=Path, help="only evaluate the model in this folder")
    parser.add_argument("--start", type=Path, default=SHIPPED, help="start from the weights in this folder")
    parser.add_argument("--look-steps", type=int, default=400, help="steps of the first stage")
    parser.add_argument("--turn-steps", type=int, default=100, help="number of its last steps, on whole turns")
    parser.add_argument("--walk-steps", type=int, default=180, help="steps of the second stage")
    parser.add_argument("--flawed-steps", type=int, default=150, help="number of its last steps, with a faulty teacher")
    parser.add_argument("--count", type=int, default=128, help="boards of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if args.out:
        teach(args)
    for temperature in (1.0, 0.0):
        metrics = measure(args.out or args.evaluate, temperature, args.count)
        print(f"T = {temperature}: " + "  ".join(f"{name} {value:.3f}" for name, value in metrics.items()), flush=True)


if __name__ == "__main__":
    main()
