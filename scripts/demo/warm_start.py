"""Trains the demo model to see, to name positions, and to think and answer, from imperfect demonstrations.

    python scripts/demo/warm_start.py --out runs/tiny_model                # all three stages from random weights
    python scripts/demo/warm_start.py --out runs/more --start runs/tiny_model  # the last stage again, from weights
    python scripts/demo/warm_start.py --evaluate scripts/demo/tiny_model   # metrics on the 128 test scenes, no training

Every batch has new scenes of a separate seed, so no test scene is ever seen. The demonstrations are faulty on purpose
(`demonstrate`): reinforcement learning has to correct them.
"""

import argparse
import math
import re
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from scripts.demo import make_scenes, make_tiny_model
from scripts.demo.learn_to_name import optimizer_and_schedule, train_reader
from scripts.demo.learn_to_see import train_tower
from task.trajectory_sharerobot import discrete_frechet

WARM_SEED = 3
FAST_SHARE = 0.5  # of hasty demonstrations
FAST_JITTER, SLOW_JITTER, LOOK_JITTER = 9.0, 3.0, 1.5  # standard deviations in pixels
BIAS = (6.0, -6.0)  # pixels by which every demonstrated way-point is off
WRONG_SIDE_SHARE = 0.15  # of careful demonstrations that pass a block
PAIR = re.compile(r"\[(\d+), (\d+)\]")
COMPLETION = re.compile(r"\s*<think>[^<]*</think>\s*<answer>\[(\[\d+, \d+\](?:, \[\d+, \d+\])+)\]</answer>\s*")


# ---- the scene as the model sees it, and a demonstration on it


def demonstrate(scene, rng, flawed=True):
    """A completion of an imperfect teacher: what it sees, what it will do, then the path.

    A hasty teacher (FAST_SHARE) ignores blocks and is imprecise; a careful one goes around them, sometimes on the wrong
    side. Both start and end the path at the positions of gripper and target in the thought. Without flaws there is no
    jitter, no bias and no wrong side; a hasty teacher still ignores blocks.
    """
    flaw = 1.0 if flawed else 0.0
    scale, limit = scene.scale, np.array(scene.processed_size) - 1
    truth = scene.path * scale
    start, end = (np.clip(point * scale + rng.normal(0, flaw * LOOK_JITTER, 2), 0, limit).round()
                  for point in (scene.gripper.xy, scene.objects[0][0].xy))  # fmt: skip
    fast = rng.random() < FAST_SHARE
    thought = f"Gripper at {show(start)}. The {scene.target_name} at {show(end)}."
    if fast or not scene.passes:
        path = np.linspace(start, end, len(make_scenes.cut_evenly(np.stack([start, end]))))
        thought += f" Go straight, {'fast' if fast else 'slowly'}."
    else:
        share = np.linspace(0, 1, len(truth))[:, None]
        detour = truth - ((1 - share) * truth[0] + share * truth[-1])
        index, side = scene.passes[0]
        if rng.random() < flaw * WRONG_SIDE_SHARE:
            detour, side = -detour, {"above": "below", "below": "above", "left": "right", "right": "left"}[side]
        path = (1 - share) * start + share * end + detour
        block = np.clip(scene.blocks[index].xy * scale + rng.normal(0, flaw * LOOK_JITTER, 2), 0, limit)
        thought += f" Block at {show(block)}, so pass {side}, slowly."
    path = path + flaw * (rng.normal(0, FAST_JITTER if fast else SLOW_JITTER, path.shape) + BIAS)
    answer = ", ".join(show(point) for point in np.clip(path, 0, limit))
    return f"<think>{thought}</think><answer>[{answer}]</answer>"


def show(point):
    return f"[{round(point[0])}, {round(point[1])}]"


def render(processor, scene):
    content = [{"type": "image"}, {"type": "text", "text": make_tiny_model.TEMPLATE.format(Question=scene.question)}]
    turn = {"role": "user", "content": content}
    return processor.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)


# ---- supervised training


def make_batch(processor, scenes, rng, flawed):
    """Model inputs of prompt + demonstration, right-padded, with labels on the completion only."""
    texts = [render(processor, scene) + demonstrate(scene, rng, flawed) + "<|im_end|>" for scene in scenes]
    pictures = [make_scenes.draw(scene) for scene in scenes]
    batch = processor(text=texts, images=pictures, padding=True, padding_side="right", return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    turn = processor.tokenizer.convert_tokens_to_ids("<|im_start|>")
    for row in labels:
        row[: int((row == turn).nonzero()[-1]) + 3] = -100  # <|im_start|>, assistant, newline
    return dict(batch), labels


def train(model, processor, args):
    rng = np.random.default_rng([WARM_SEED, args.seed])
    optimizer, schedule = optimizer_and_schedule(model, args.lr, args.steps)
    began, losses = time.time(), []
    for step in range(args.steps):
        first = step * args.batch
        scenes = [make_scenes.make_scene(WARM_SEED + 1000 * args.seed, first + i) for i in range(args.batch)]
        batch, labels = make_batch(processor, scenes, rng, flawed=step >= args.clean_steps)
        loss = model(**batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            spent = time.time() - began
            print(f"step {step + 1}/{args.steps}  loss {np.mean(losses[-50:]):.4f}  {spent:.0f} s", flush=True)
        if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
            make_tiny_model.save(model, args.out)
            report(evaluate(model, processor, test_scenes(64), sample=True), f"step {step + 1}, 64 test scenes, T = 1")


# ---- evaluation on the test scenes


def test_scenes(count):
    return [make_scenes.make_scene(make_scenes.TEST_SEED, index) for index in range(count)]


@torch.no_grad()
def generate(model, processor, scenes, sample, batch_size=32):
    """One completion per scene; sets every sampling option, because the checkpoint's defaults make sampling greedy."""
    model.eval()
    completions = []
    for at in range(0, len(scenes), batch_size):
        part = scenes[at : at + batch_size]
        inputs = processor(
            text=[render(processor, scene) for scene in part],
            images=[make_scenes.draw(scene) for scene in part],
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
        output = model.generate(**inputs, max_new_tokens=160, repetition_penalty=1.0, **options)
        completions += processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    model.train()
    return completions


def evaluate(model, processor, scenes, sample):
    """Means over the scenes: format rate, accuracy reward, discrete Frechet distance, position error in the thought."""
    rows = []
    for scene, completion in zip(scenes, generate(model, processor, scenes, sample), strict=True):
        truth = scene.path * scene.scale
        tenth = 0.1 * math.hypot(*scene.processed_size)
        match = COMPLETION.fullmatch(completion)
        path = np.array(PAIR.findall(match.group(1)), dtype=float) if match else None
        distance = discrete_frechet(path, truth) if match else float("nan")
        named = np.array(PAIR.findall(completion.split("</think>")[0])[:2], dtype=float)
        places = np.array([scene.gripper.xy, scene.objects[0][0].xy]) * scene.scale
        miss = np.linalg.norm(named - places, axis=1) if len(named) == 2 else np.array([np.inf, np.inf])
        thought, _, answer = completion.partition("</think>")
        rows.append({
            "format": float(match is not None),
            "accuracy": math.exp(-distance / tenth) if match else 0.0,
            "dfd": distance,
            "gripper_px": miss[0],
            "target_px": miss[1],
            "both_within_7px": float((miss <= 7).all()),
            "slowly": float("slowly" in thought),
            "thought_tokens": len(processor.tokenizer(thought + "</think>").input_ids),
            "answer_tokens": len(processor.tokenizer(answer).input_ids) + 1,
        })  # fmt: skip
    metrics = {}
    for key in rows[0]:
        values = np.array([row[key] for row in rows])
        values = values[np.isfinite(values)]
        metrics[key] = float(values.mean()) if len(values) else float("nan")
        if key.endswith("tokens"):
            metrics[f"{key}_max"] = float(values.max())
    return metrics


def report(metrics, title):
    print(f"{title}: " + "  ".join(f"{key} {value:.3f}" for key, value in metrics.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="train, and write the model to this folder")
    action.add_argument("--evaluate", type=Path, help="only evaluate the model in this folder")
    parser.add_argument("--start", type=Path, help="skip the first two stages: start from the weights in this folder")
    parser.add_argument("--see-steps", type=int, default=1200, help="steps of the vision tower alone (learn_to_see.py)")
    parser.add_argument("--name-steps", type=int, default=1600, help="steps of naming positions (learn_to_name.py)")
    parser.add_argument("--clean-steps", type=int, default=1200, help="first steps, on demonstrations without flaws")
    parser.add_argument("--steps", type=int, default=1600, help="steps of thinking and answering in total")
    parser.add_argument("--batch", type=int, default=16, help="scenes per step of thinking and answering")
    parser.add_argument("--lr", type=float, default=1.2e-3, help="peak learning rate; the vision tower's is a fifth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=400, help="steps between saves")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = make_tiny_model.build_tokenizer()
    processor = make_tiny_model.build_processor(tokenizer)
    if args.evaluate or args.start:
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(args.evaluate or args.start, dtype=torch.float32)
    else:
        model = make_tiny_model.build_model(tokenizer, args.seed)
        train_tower(model, processor, args.see_steps, 32, 2e-3, args.seed)
        train_reader(model, processor, args.name_steps, 32, 1.5e-3, args.seed)
    if args.out:
        train(model, processor, args)
    report(evaluate(model, processor, test_scenes(128), sample=True), "128 test scenes, T = 1")
    report(evaluate(model, processor, test_scenes(128), sample=False), "128 test scenes, greedy")


if __name__ == "__main__":
    main()
