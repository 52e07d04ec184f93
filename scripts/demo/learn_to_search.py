"""Teaches the search demo's text model to copy names, then to search step by step, from imperfect demonstrations.

    python scripts/demo/learn_to_search.py --out runs/tiny_text_model            # all stages from random weights
    python scripts/demo/learn_to_search.py --evaluate scripts/demo/tiny_text_model  # on the 300 held-out questions

Three stages: `copy` (repeated stretches of syllables), `read` (conversations without faults and without the long
instruction; the loss includes the documents) and `act` (the real prompt; the loss covers only what the agent writes;
with faults at the end). search_demonstrations.py generates the data.
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
from transformers import Qwen2ForCausalLM

from dataset.dataset_grpo import build_dataset
from model.loading import load_policy
from scripts.demo import make_tiny_text_model
from scripts.demo.make_facts import FIRST, FOLDER, SECOND
from scripts.demo.search_demonstrations import IGNORED, TOP_K, Faults, World, conversation, repetitions
from task.task_loader import load_tasks
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.evaluation.predict import predict
from trainer.policies.agent.build import agent_policy
from trainer.policies.agent.step import TreeShape

FIRST_SEED, WORLDS = 1000, 12
CLEAN = Faults(careless=0.3)
FLAWED = Faults(guess=0.05, careless=0.4, hasty=0.5, stop=0.4)
COPIED = 0.3  # nats: the first stage ends at this loss
LENGTH = 512  # tokens per completion, documents included
AGENT = SimpleNamespace(max_turns=3, max_turn_length=48, max_observation_length=96, tool_timeout=30.0)


def optimizers_of(model, muon_lr: float, adam_lr: float) -> list:
    """Muon for the matrices of the blocks, AdamW for the rest: needs half the steps of AdamW alone."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=muon_lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(model, title, lesson, steps, batch, lr, good_enough=0.0, fall=False):
    """`steps` steps of `batch` rows (ids, labels) of `lesson(step)`; `fall`: whether the learning rate decays to 0."""
    optimizers = optimizers_of(model, lr, 0.4 * lr)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    began, losses = time.time(), []
    for step in range(steps):
        scale = min(1, (step + 1) / 20) * (1 - step / steps if fall else 1)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * scale
        loss = loss_of(model, [lesson(step) for _ in range(batch)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            mean = sum(losses[-50:]) / 50
            print(f"{title} {step + 1}/{steps}  loss {mean:.4f}  {time.time() - began:.0f} s", flush=True)
        if step >= 20 and sum(losses[-20:]) / 20 < good_enough:
            break


def loss_of(model, rows):
    """Mean cross-entropy of the labelled tokens; rows are padded on the right, which a causal model ignores."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in rows])[:, 1:]
    learnt = labels != IGNORED
    hidden = model.model(ids).last_hidden_state[:, :-1]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learnt]), labels[learnt])


def teach(model, tokenizer, args):
    rng = random.Random(f"lessons {args.seed}")
    syllables = [tokenizer(f" {first}")["input_ids"][0] for first in FIRST]
    syllables += [tokenizer(f" {FIRST[0]}{second}")["input_ids"][1] for second in SECOND]
    with tempfile.TemporaryDirectory() as folder:
        worlds = [World(FIRST_SEED + number, Path(folder)) for number in range(WORLDS)]

        def talk(faults, bare):
            return conversation(tokenizer, rng.choice(worlds), rng, faults, bare)

        def act(step):
            return talk(FLAWED if step >= args.act_steps - args.flawed_steps else CLEAN, bare=False)

        if not args.start:
            train(model, "copy", lambda step: repetitions(syllables, 40, rng), args.copy_steps, 48, 1e-2, COPIED)
        if args.read_steps:
            train(model, "read", lambda step: talk(CLEAN, bare=True), args.read_steps, 16, 6e-3)
            make_tiny_text_model.save(model, tokenizer, args.out)
            report(args.out, 1.0, 60)
        train(model, "act", act, args.act_steps, 16, 3e-3, fall=True)
        make_tiny_text_model.save(model, tokenizer, args.out)


@torch.no_grad()
def measure(folder: Path, temperature: float, count: int | None = None) -> dict[str, float]:
    """The task's own metrics on the held-out questions (or the first `count`), one chain each."""
    tasks = load_tasks()
    rows = build_dataset([str(FOLDER.parent / "search_test.yaml")], tasks)
    module, model, tokenizer = load_policy(str(folder), dtype="float32")
    ends, never = module.eos_token_ids(tokenizer), module.forbidden_token_ids(tokenizer)
    engine = TransformersEngine(model.eval(), module, tokenizer, Sampling(temperature=temperature), ends, never)
    settings = {"retriever": str(FOLDER / "corpus.jsonl"), "top_k": TOP_K}

    def policy_of(task, records):
        return agent_policy(AGENT, records, tasks, tokenizer, module, settings, shape=TreeShape(1), length=LENGTH)

    rows = rows.select(range(count)) if count else rows
    limits = {"max_new_tokens": LENGTH, "batch_size": 100, "seed": 0}
    return tasks["search_qa"].compute_metrics(predict(engine, module, rows, tasks, policy_of=policy_of, **limits))


def report(folder: Path, temperature: float, count: int | None = None):
    metrics = measure(folder, temperature, count)
    print(f"T = {temperature}: " + "  ".join(f"{name} {value:.3f}" for name, value in metrics.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="train, and write the model to this folder")
    action.add_argument("--evaluate", type=Path, help="only evaluate the model in this folder")
    parser.add_argument("--start", type=Path, help="start from the weights in this folder, without the first stage")
    parser.add_argument("--copy-steps", type=int, default=1000, help="maximum steps of the first stage")
    parser.add_argument("--read-steps", type=int, default=600, help="steps of the second stage")
    parser.add_argument("--act-steps", type=int, default=300, help="steps of the third stage")
    parser.add_argument(
        "--flawed-steps", type=int, default=200, help="number of its last steps, with faulty demonstrations"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if args.out:
        tokenizer = make_tiny_text_model.build_tokenizer()
        if args.start:
            model = Qwen2ForCausalLM.from_pretrained(args.start, dtype=torch.float32)
        else:
            model = make_tiny_text_model.build_model(tokenizer, args.seed)
        teach(model, tokenizer, args)
    for temperature in (1.0, 0.0):
        report(args.out or args.evaluate, temperature)


if __name__ == "__main__":
    main()
