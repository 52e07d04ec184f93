"""Folders for the report's tests, written by hand: a run with trees of every policy, evaluations, and hostile ones."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import random
from pathlib import Path

from PIL import Image, ImageDraw

SCRIPT = "</script><script>window.broken = true</script><img src=x onerror='window.broken = true'>"


def write_lines(file: Path, entries: list[dict]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return file


def picture(file: Path, size=(84, 60), colour=(90, 150, 160)) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, colour)
    ImageDraw.Draw(image).ellipse(
        (size[0] // 2, size[1] // 2, size[0] // 2 + 12, size[1] // 2 + 12), fill=(230, 200, 60)
    )
    image.save(file)
    return str(file)


def data_url(size=(112, 84), colour=(60, 120, 200)) -> str:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "png")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def log_entries(steps: int, every: int = 5, seed: int = 0) -> list[dict]:
    """What a run of GRPO-MA logs, with one spike of the gradient in the middle."""
    draw = random.Random(seed)
    entries = [{"event": "start", "time": 1000.0, "max_steps": steps, "method": "grpo_ma", "think_num": 4}]
    for step in range(every, steps + 1, every):
        gain = 0.3 * step / steps
        entries.append(
            {
                "step": step,
                "time": 1000.0 + 2 * step,
                "num_tokens": 4000.0 * step,
                "reward": 0.4 + gain + draw.gauss(0, 0.02),
                "reward_std": 0.2,
                "rewards/accuracy_reward/mean": 0.25 + gain + draw.gauss(0, 0.02),
                "rewards/format_reward/mean": 0.98,
                "variance/between": 0.01,
                "variance/within": 0.013,
                "variance/rho": 0.42 + draw.gauss(0, 0.03),
                "thought/zero_spread": 0.0,
                "answer/zero_spread": 0.0,
                "thought/length": 31.0 + draw.gauss(0, 1),
                "answer/length": 37.0,
                "rollout/cut_share": 0.004,
                "thought/unclosed_share": 0.0,
                "grad_norm": 2.5 if step == steps // 2 // every * every else 0.2 + draw.random() * 0.1,
                "tokens/generated": 720.0,
                "tokens/unique": 800.0,
                "tokens/trained": 2440.0,
                "step_time": 1.7,
                "loss": draw.gauss(0, 1e-9),
                "learning_rate": 4e-4 * (1 - step / steps),
                "trajectory-sharerobot/dfd": 27.0,
            }
        )
    return entries


def node(parent: int, kind: str, text: str, advantage: float, **changes) -> dict:
    tokens = [text[i : i + 4] for i in range(0, len(text), 4)]
    entropies = [round(0.2 + (len(text) * 7 + 3 * i) % 23 / 10, 3) for i in range(len(tokens))]
    plain = {"parent": parent, "kind": kind, "group": 0, "status": "ok", "sampled": True, "count": len(tokens)}
    plain |= {"text": text, "tokens": tokens, "entropies": entropies, "logprobs": [-round(x / 2, 3) for x in entropies]}
    return plain | {"advantage": advantage, "reward": 0.5} | changes


def thought_answer_tree(step: int, prompt: str, image: str | None, seed: int = 0) -> dict:
    """4 thoughts, the last of which never closed, 4 answers below each other one."""
    draw = random.Random(f"{seed}{step}{prompt}")
    nodes, rows = [], []
    for k in range(4):
        text = f"<think>Gripper at [{39 + k}, 65]. The yellow cone at [39, 14]. Go straight.</think>"
        nodes.append(node(-1, "thought", text, round(draw.uniform(-1.2, 1.2), 4), group=k))
    nodes[3]["status"] = "unclosed"
    for k in range(3):
        for _ in range(4):
            path = [[draw.randint(5, 80), draw.randint(5, 55)] for _ in range(3)]
            reward, advantage = round(draw.random(), 4), round(draw.uniform(-1.5, 1.5), 4)
            nodes.append(node(k, "answer", f"<answer>{path}</answer><|im_end|>", advantage, reward=reward, group=k))
            rows.append(
                {
                    "leaf": len(nodes) - 1,
                    "rewards": {"format_reward": 1.0, "accuracy_reward": reward},
                    "reward": reward + 0.2,
                    "advantage": advantage,
                }
            )
    lost = {"leaf": 3, "rewards": {"format_reward": 0.0, "accuracy_reward": None}, "reward": 0.0, "advantage": -1.0}
    return _tree(step, prompt, image, nodes, rows + [lost] * 4)


def agent_tree(step: int, prompt: str) -> dict:
    """Two chains of steps and observations, one of them branched, one tool failed."""
    nodes = [
        node(-1, "step", "<search>capital of France</search>", 0.5),
        node(0, "observation", "Paris is the capital of France.", 0.5, sampled=False, entropies=[], logprobs=[]),
        node(1, "step", "<answer>Paris</answer>", 0.9),
        node(1, "step", "<search>Paris mayor</search>", -0.4),
        node(
            3,
            "observation",
            "tool error",
            -0.4,
            sampled=False,
            status="failed",
            error="refused",
            entropies=[],
            logprobs=[],
        ),
        node(-1, "step", "<answer>Lyon</answer>", -1.1, group=1),
    ]
    nodes[1]["pictures"] = [data_url(), data_url((160, 40), (200, 60, 60))]
    rows = [
        {"leaf": leaf, "rewards": {"em": float(leaf == 2)}, "reward": float(leaf == 2), "advantage": advantage}
        for leaf, advantage in ((2, 0.9), (4, -0.4), (5, -1.1))
    ]
    return _tree(step, prompt, None, nodes, rows) | {"question_type": "retrieval", "question": "Capital of France?"}


def segment_tree(step: int, prompt: str) -> dict:
    """A tree that forks inside its text, seven levels deep."""
    nodes = [node(-1, "segment", "Start of it all.", 0.1)]
    for level in range(1, 7):
        nodes += [node(len(nodes) - 1 - (level > 1), "segment", f"level {level} {side}", 0.1 * level) for side in "ab"]
    leaves = [i for i in range(len(nodes)) if all(other["parent"] != i for other in nodes)]
    rows = [{"leaf": i, "rewards": {"accuracy_reward": 1.0}, "reward": 1.0, "advantage": 0.1} for i in leaves]
    return _tree(step, prompt, None, nodes, rows) | {"forked_by": "entropy"}


def write_run(folder: Path, steps: int = 100) -> Path:
    """A run with a log and trees of steps 0, 20, ..., three prompts each."""
    image = picture(folder / "pictures" / "scene.png")
    write_lines(folder / "log.jsonl", [*log_entries(steps), {"event": "end", "time": 2000.0}])
    trees = []
    for step in range(0, steps, 20):
        trees += [
            thought_answer_tree(step, "scene-1", image),
            agent_tree(step, "question-1"),
            segment_tree(step, "deep"),
        ]
    write_lines(folder / "trees.jsonl", trees)
    return folder


def prediction(i: int, image: str | None = None, **changes) -> dict:
    """A prediction of the trajectory task on a picture of 84 x 60 that the model saw at 168 x 120."""
    path = [[10.0 + i % 7, 10.0], [40.0, 30.0 + i % 11], [70.0, 50.0]]
    predicted = [[2 * x + 6, 2 * y - 4] for x, y in path]
    plain = {
        "id": f"item-{i:05d}",
        "question_type": "trajectory-sharerobot",
        "image_size": [84, 60],
        "processed_size": [168, 120],
        "record": {"question": f"Move the gripper to cone {i}.", "images": [image] if image else []},
        "completion": f"<think>a path</think><answer>{predicted}</answer>",
        "prediction": predicted,
        "answer": path,
        "sol": None,
        "format": 1.0,
        "accuracy": round(math.exp(-(i % 13) / 4), 4),
        "status": "ok",
    }
    return plain | changes


def write_evaluation(folder: Path, predictions: list[dict], intervals: bool = True) -> Path:
    write_lines(folder / "predictions.jsonl", predictions)
    metrics = {"trajectory-sharerobot": {"accuracy": 0.41, "dfd_px": 12.25, "n": len(predictions)}}
    result = {"metrics": metrics, "counts": {"items": len(predictions), "generated_tokens": 900, "seconds": 3.0}}
    result["settings"] = {"temperature": 0.0, "dataset": ["test.yaml"]}
    if intervals:
        result["intervals"] = {"trajectory-sharerobot": {"accuracy": [0.35, 0.48]}}
    (folder / "metrics.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def every_shape(folder: Path) -> list[dict]:
    """One prediction for each form an answer has, with and without a picture."""
    image = picture(folder / "pictures" / "a.png")
    box = {"x": 10, "y": 12, "width": 30, "height": 20}
    two = [{"bbox_2d": [20, 24, 80, 64], "label": "cup"}, {"bbox_2d": [90, 10, 150, 100], "label": "lamp"}]
    return [
        prediction(0, image),
        prediction(1, image, id="box", question_type="affordance-sharerobot", answer=box, prediction=[24, 20, 82, 60]),
        prediction(2, image, id="boxes", question_type="object-detection", answer=[], prediction=two),
        prediction(3, image, id="point", question_type="demand-prediction", answer=[box], prediction=[84.0, 60.0]),
        prediction(4, id="words", question_type="math-reasoning", answer="40", prediction="41", image_size=None),
        prediction(5, image, id="lost", status="parse_fail", prediction=None, accuracy=0.0),
        prediction(
            6, id="gone", status="load_error", error="picture x.png: no such file", image_size=None, accuracy=None
        ),
    ]


def hostile_predictions() -> list:
    huge = "long " * 40_000
    return [
        prediction(
            0, id=SCRIPT, completion=SCRIPT, prediction=SCRIPT, answer=SCRIPT, status=SCRIPT, question_type=SCRIPT
        ),
        prediction(1, completion=huge, record={"question": huge, "images": ["/no/such/picture.png"]}),
        prediction(2, accuracy=math.nan, format=math.inf, prediction=[[math.nan, 1e300], [1, 2]], image_size=[0, -3]),
        {"id": 7},
        {"record": "text", "accuracy": "high", "prediction": {"bbox_2d": [1]}, "image_size": [84, 60], "id": None},
        {"record": {"images": [{"a": 1}], "question": ["x", 1]}, "id": ["list"], "status": 5, "question_type": {}},
        prediction(3, id="\ud800 lone", record={"question": "\u202e reversed \u2028 line", "images": []}),
        prediction(4, prediction=[[1, 2]] * 5000, answer=[{"x": 1, "y": 1, "width": "w", "height": None}]),
    ]


def write_hostile(folder: Path) -> Path:
    write_lines(folder / "predictions.jsonl", hostile_predictions())
    with (folder / "predictions.jsonl").open("ab") as out:
        out.write(b"[1, 2]\nnot json\n\xff\xfe\n" + b'{"id": "half"')
    (folder / "metrics.json").write_text('{"metrics": {"t": {"a": NaN, "b": "x"}, "u": 3}, "intervals": 4', "utf-8")
    tree = thought_answer_tree(5, SCRIPT, "/no/picture.png") | {"question": SCRIPT, "cut": SCRIPT}
    tree["nodes"][0] |= {"text": SCRIPT, "tokens": [SCRIPT, "@DATA@"], "kind": SCRIPT, "status": SCRIPT}
    loop = thought_answer_tree(6, "loop", None)
    loop["nodes"][1]["parent"] = 9
    odd = {
        "step": 7,
        "nodes": [{}, {"parent": "x", "tokens": "no list", "entropies": [None, "a"]}],
        "rows": [{"leaf": 99}, 3],
    }
    write_lines(folder / "trees.jsonl", [tree, loop, odd, {"step": 8, "nodes": [1]}, {"step": None, "nodes": []}])
    entries = [
        {"step": 5, "reward": math.nan, SCRIPT: 1.0},
        {"step": 10, "reward": 1e308, "grad_norm": math.inf},
        {"step": "x"},
    ]
    write_lines(folder / "log.jsonl", [{"event": "start", "max_steps": "many", SCRIPT: SCRIPT}, *entries])
    return folder


def _tree(step: int, prompt: str, image: str | None, nodes: list[dict], rows: list[dict]) -> dict:
    return {
        "step": step,
        "prompt_id": prompt,
        "question_type": "trajectory-sharerobot",
        "question": "Move the gripper to the yellow cone.",
        "images": [image] if image else [],
        "image_size": [84, 60] if image else None,
        "processed_size": [84, 60] if image else None,
        "nodes": nodes,
        "rows": rows,
    }


def set_age(file: Path, seconds: float) -> None:
    """Makes a file as old as if it had been written so many seconds ago."""
    then = file.stat().st_mtime - seconds
    os.utime(file, (then, then))
