"""Trains cases of layout_matrix.py one after another as one process of a layout (imports take most of the time).

[torchrun --nproc_per_node 2] scripts/bench/layout_worker.py LAYOUT FOLDER CASE ...
"""

import contextlib
import functools
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import fsdp_on_cpu
import torch
from fixed_rollouts import FixedRollouts, hashed_tree, text_reward
from layout_cases import CASES, FSDP2, LAYOUTS, RATES, Case, settings
from peft import LoraConfig
from torch.distributed.tensor import DTensor

from config.grpo_config import GRPOConfig
from dataset.dataset_grpo import rows_from_records
from model.loading import load_policy
from task.task_loader import load_tasks

QUIET = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
TIMEOUT = 90  # seconds
DATA = ROOT / "metadata" / "demo" / "trajectory"


def rows(count: int):
    """The first `count` rows of the demo's training data."""
    lines = (DATA / "train.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return rows_from_records([json.loads(line) for line in lines], load_tasks(), image_root=str(DATA))


def train(case: Case, layout: str, folder: Path) -> dict:
    """The trainable weights before and after three steps, and the advantage of each completion of the last step."""
    processes, sharding = LAYOUTS[layout]
    args = GRPOConfig(
        output_dir=str(folder / f"train_{case.name}"),
        deepspeed=str(ROOT / "scripts" / sharding) if sharding not in (None, FSDP2) else None,
        gradient_checkpointing=False,
        ddp_timeout=TIMEOUT,
        **settings(case, processes),
        **QUIET,
    )
    dtype = "bfloat16" if case.bf16 else "float32"
    module, model, processor = load_policy(str(ROOT / "scripts/demo/tiny_model"), dtype=dtype, trainable=True)
    module.freeze(model, freeze_vision=True)
    target = module.lora_target_modules(model)
    torch.manual_seed(0)  # for a new adapter
    trainer = FixedRollouts(
        model,
        text_reward,
        args,
        rows(24),
        processing_class=processor,
        module=module,
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=target, task_type="CAUSAL_LM") if case.lora else None,
        write=functools.partial(hashed_tree, spans_ranks=case.spread),
    )
    start = trainable(trainer.model)
    trainer.train()
    assert trainer.accelerator.num_processes == processes and trainer.state.global_step == 3
    logs = trainer._logs
    advantages = dict(zip(logs["completion"], logs["advantages"], strict=True))
    return {"start": start, "weights": trainable(trainer.model), "advantages": advantages}


def trainable(model) -> dict[str, torch.Tensor]:
    """Copies of the whole trainable weights, also where they are sharded; of ZeRO, once it trains, the float32 ones."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    if all(hasattr(weight, "_hp_mapping") or hasattr(weight, "_z3_optimizer") for _, weight in named):
        from deepspeed.utils import safe_get_full_fp32_param

        return {name: safe_get_full_fp32_param(weight).detach().clone() for name, weight in named}
    whole = contextlib.nullcontext()
    if any(hasattr(weight, "ds_id") for _, weight in named):
        import deepspeed

        whole = deepspeed.zero.GatheredParameters([weight for _, weight in named])
    with whole:
        return {
            name: (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().clone()
            for name, weight in named
        }


def main(layout: str, folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    if LAYOUTS[layout][1] == FSDP2:
        fsdp_on_cpu.pretend(timedelta(seconds=TIMEOUT))
    for case in (case for case in (*CASES, *RATES) if case.name in names):
        result = train(case, layout, folder)
        if os.environ.get("RANK", "0") == "0":
            torch.save(result, folder / f"{case.name}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # a process that leaves first can abort the others
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
