"""Run by two processes under torch's launcher: scenarios in which one has other work than the other, one after another.

torchrun --nproc_per_node 2 tests/support/uneven_case.py LAYOUT FOLDER SCENARIO ...  (LAYOUT: ddp, zero2, zero3, fsdp2)

Rows alternate, so the first process always gets those of even place and the second those of odd place. Each scenario
trains three steps and writes FOLDER/SCENARIO.json; a hang ends in the collectives' short timeout.
"""

import json
import os
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from paths import ROOT

sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench")]

import fsdp_on_cpu
import torch
from fixed_rollouts import FixedRollouts, hashed_tree, text_reward, written
from layout_worker import trainable
from peft import LoraConfig

from config.grpo_config import GRPOConfig
from dataset.dataset_grpo import rows_from_records
from model.loading import load_policy
from task.task_loader import load_tasks
from trainer.grpo_ma_trainer import GRPOMATrainer
from trainer.tree import PROMPT, Tree

DATA = ROOT / "metadata" / "demo" / "trajectory"
RANK = int(os.environ.get("RANK", "0"))
TIMEOUT, SLOW = 60, [30]  # seconds
END = 616  # <|im_end|> of the demo's tokenizer
PICTURE, TEXT, TWO, BROKEN, VIDEO = "picture", "text", "two pictures", "broken picture", "video"


@dataclass
class Scenario:
    """What the two processes get; `rows` are kinds of prompt, first process and second."""

    rows: tuple[str, str] = (PICTURE, PICTURE)
    write: object = hashed_tree  # None: the real engine
    reward: object = text_reward
    vision: bool = False
    broken: bool = False  # the second process's loss of the second step is NaN
    settings: dict = field(default_factory=dict)


def tree(name: str, thoughts: list[int], answers: int, closed=True, end=False) -> Tree:
    """A tree of thoughts of these lengths, each with answers of the same length."""
    found = Tree(name)
    for k, length in enumerate(thoughts):
        node = written(PROMPT, "thought", f"{name}/{k}", length)
        node.token_ids = (node.token_ids * length)[:length]
        node.logprobs, node.status, node.group = [-1.0] * length, "ok" if closed else "unclosed", k
        parent = found.add(node)
        for m in range(answers if closed else 0):
            leaf = written(parent, "answer", f"{name}/{k}/{m}", length)
            leaf.token_ids = [*(leaf.token_ids * length)[: length - 1], END if end else 400 + m]
            leaf.logprobs, leaf.group = [-1.0] * length, k
            found.add(leaf)
    return found


def short_and_long(name, policy, rank):
    return tree(name, [150, 150] if rank else [3, 4], 2)


def second_unclosed(name, policy, rank):
    return tree(name, [6, 9], 2, closed=rank == 0)


def second_all_fail(name, policy, rank):
    found = tree(name, [4, 4], 0, closed=False)
    for node in found.nodes if rank else []:
        node.status, node.sampled, node.token_ids, node.logprobs = "failed", False, [END], []
    return found


def second_without_end(name, policy, rank):
    return tree(name, [5, 5], 2, end=rank == 0)


def slow_reward(completions, **kwargs):
    """The first call on the second process takes half the collectives' timeout."""
    time.sleep(SLOW.pop() if RANK and SLOW else 0)
    return text_reward(completions)


def none_on_the_second(completions, **kwargs):
    return [None] * len(completions) if RANK else text_reward(completions)


def equal_on_the_second(completions, **kwargs):
    return [0.5] * len(completions) if RANK else text_reward(completions)


def equal_for_even_records(completions, record, **kwargs):
    """Without sync, equal rewards on the first process's first prompts, and never on the second's."""
    even = [int(one["id"].rpartition("-")[2]) % 2 == 0 for one in record]
    return [0.5 if flat else value for flat, value in zip(even, text_reward(completions), strict=True)]


REDRAW = {"on_zero_spread": "redraw", "max_redraws": 2}
GROW = {"on_zero_spread": "grow", "grow_budget": 0.5, "max_thought_length": 80, "max_answer_length": 40}
SKIP = {"on_bad_media": "skip"}
OPEN = {"vision": True}
SCENARIOS = {
    "picture and text": Scenario((PICTURE, TEXT)),
    "text and picture": Scenario((TEXT, PICTURE)),
    "picture and text, vision trained": Scenario((PICTURE, TEXT), **OPEN),
    "text and picture, vision trained": Scenario((TEXT, PICTURE), **OPEN),
    "picture and text, dense, vision trained": Scenario((PICTURE, TEXT), settings={"prefix_sharing": "off"}, **OPEN),
    "picture and text, checkpointing, vision trained": Scenario(
        (TEXT, PICTURE), settings={"gradient_checkpointing": True}, **OPEN
    ),
    "video and two pictures, vision trained": Scenario((VIDEO, TWO), **OPEN),
    "picture and text, reference model": Scenario((TEXT, TWO), settings={"beta": 0.04, "num_iterations": 2}, **OPEN),
    "completions of 7 and 300 tokens": Scenario(write=short_and_long),
    "thoughts of one process unclosed": Scenario(write=second_unclosed),
    "rollouts of one process failed": Scenario(write=second_all_fail),
    "one process skips broken pictures": Scenario((PICTURE, BROKEN), settings=SKIP),
    "one process skips, the other has text": Scenario((TEXT, BROKEN), settings=SKIP, **OPEN),
    "a reward of 30 s on one process": Scenario(reward=slow_reward),
    "no reward on one process": Scenario(reward=none_on_the_second),
    "equal rewards on one process": Scenario(reward=equal_on_the_second),
    "a micro-batch with every completion masked": Scenario(
        write=second_without_end, settings={"mask_truncated_completions": True}
    ),
    "a loss of one process is NaN": Scenario((PICTURE, TEXT), broken=True, settings={"on_non_finite": "skip"}, **OPEN),
    "cuts of max_slots differ": Scenario((TEXT, TEXT), write=short_and_long, settings={"max_slots": 420}),
    "cuts and pictures differ": Scenario((PICTURE, TEXT), write=short_and_long, settings={"max_slots": 480}, **OPEN),
    "sampled rollouts of different length": Scenario((PICTURE, TEXT), write=None, **OPEN),
    "sampled, vision frozen, picture and text": Scenario((PICTURE, TEXT), write=None),
    "sampled, vision frozen, video and two pictures": Scenario(
        (VIDEO, TWO), write=None, settings={"beta": 0.04, "num_iterations": 2}
    ),
    "redraws on one process": Scenario(reward=equal_for_even_records, settings=REDRAW),
    "redraws of one prompt for all": Scenario(
        reward=equal_for_even_records, settings=REDRAW | {"sync_prompt_across_ranks": True}
    ),
    "sampled, growth on one process": Scenario(write=None, reward=equal_for_even_records, settings=GROW),
    "sampled, growth of one prompt for both": Scenario(
        write=None, reward=equal_for_even_records, settings=GROW | {"sync_prompt_across_ranks": True}
    ),
    "sampled, one prompt for both": Scenario(write=None, settings={"sync_prompt_across_ranks": True}),
}


def break_loss(trainer, step: int) -> None:
    original = trainer._get_per_token_logps_and_entropies

    def log_probs(*args, **kwargs):
        values, *rest = original(*args, **kwargs)
        return (values * torch.nan if trainer._step == step else values), *rest

    trainer._get_per_token_logps_and_entropies = log_probs


def rows(kinds: tuple[str, str], folder: Path, count: int):
    """`count` rows, kinds in turn, on the demo's records."""
    lines = (DATA / "train.jsonl").read_text(encoding="utf-8").splitlines()
    records = []
    for i in range(count):
        record, kind = json.loads(lines[i]), kinds[i % 2]
        picture = str(DATA / record.pop("image"))
        if kind in (PICTURE, TWO):
            record["image"] = [picture] * (1 + (kind == TWO))
        elif kind == BROKEN:
            record["image"] = str(folder / "broken.png")
        elif kind == VIDEO:
            record["video"] = str(folder / "clip.gif")
        records.append(record)
    return rows_from_records(records, load_tasks(), on_bad_media="skip")


def train(name: str, layout: str, folder: Path) -> dict:
    """Three steps; what the log and the weights of both processes say."""
    scenario = SCENARIOS[name]
    deepspeed = str(ROOT / f"scripts/{layout}.json") if layout.startswith("zero") else None
    settings = {"sync_prompt_across_ranks": False, "num_iterations": 1, "gradient_checkpointing": False}
    args = GRPOConfig(
        **{
            "output_dir": str(folder / name),
            "think_num": 2,
            "answer_num": 2,
            "max_thought_length": 150,
            "max_answer_length": 150,
            "learning_rate": 1e-3,
            "adam_epsilon": 1e-3,
            "max_steps": 3,
            "logging_steps": 1,
            "shuffle_dataset": False,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "ddp_timeout": TIMEOUT,
            "ddp_find_unused_parameters": scenario.vision,  # as train.py
            "deepspeed": deepspeed,
            **settings,
            **({} if scenario.write else {"max_thought_length": 24, "max_answer_length": 24}),
            **scenario.settings,
        }
    )
    module, model, processor = load_policy(str(ROOT / "scripts/demo/tiny_model"), dtype="float32", trainable=True)
    module.freeze(model, freeze_vision=not scenario.vision)
    target = module.lora_target_modules(model, vision=scenario.vision)
    kind, written = (FixedRollouts, {"write": scenario.write}) if scenario.write else (GRPOMATrainer, {})
    trainer = kind(
        model,
        scenario.reward,
        args,
        rows(scenario.rows, folder, 6),
        processing_class=processor,
        module=module,
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=target, task_type="CAUSAL_LM"),
        **written,
    )
    if scenario.broken and RANK:
        break_loss(trainer, step=1)
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    weights = torch.cat([weight.flatten() for weight in trainable(trainer.model).values()])
    largest, smallest = weights.clone(), weights.clone()
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    torch.distributed.all_reduce(smallest, torch.distributed.ReduceOp.MIN)
    return {
        "steps": len(log),
        "grad_norm": [entry["grad_norm"] for entry in log],
        "finite": bool(weights.isfinite().all()),
        "gap_between_processes": (largest - smallest).abs().max().item(),
        "prompts": trainer.processes.objects([tree.prompt_id for tree in trainer.generation.rollout.trees]),
        "scored": trainer.processes.objects([len(trainer.generation.training.scored.row_tree)]),
    }


def main(layout: str, folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    if layout == "fsdp2":
        fsdp_on_cpu.pretend(timedelta(seconds=TIMEOUT))
    for name in names:
        begin = time.time()
        print(f"[{RANK}] {name}", flush=True)
        result = train(name, layout, folder) | {"seconds": time.time() - begin}
        if RANK == 0:
            (folder / f"{name}.json").write_text(json.dumps(result))
            print(f"[{RANK}] {name}: {result}", flush=True)
    torch.distributed.barrier()  # a process that leaves first can abort the other
    torch.distributed.destroy_process_group()


def prepare(folder: Path) -> None:
    """A picture that is none, and a clip of four frames."""
    from PIL import Image

    (folder / "broken.png").write_bytes(b"no picture")
    frames = [Image.new("RGB", (84, 84), (60 * i, 90, 200)) for i in range(4)]
    frames[0].save(folder / "clip.gif", save_all=True, append_images=frames[1:], duration=250)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or list(SCENARIOS))
