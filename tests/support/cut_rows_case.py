"""Run by two processes under torch's launcher: one process's rows need several cuts, the other's none.

torchrun --nproc_per_node 2 tests/support/cut_rows_case.py FOLDER cut|whole
"""

import sys
from pathlib import Path

import pytest
import torch
from paths import ROOT

sys.path.insert(0, str(ROOT))

from trainer_cases import script, text_trainer, thought_tree, weights
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from model.text_module import TextModule


def tree(prompt_id: str, policy):
    """48 tokens below the prompt of the first process, 6 below that of the second."""
    length = 8 if prompt_id == "row-0" else 1
    generator = torch.Generator().manual_seed(length)
    tokens = [torch.randint(300, 600, (length,), generator=generator).tolist() for _ in range(6)]
    return thought_tree(prompt_id, tokens[:2], [tokens[2:4], tokens[4:]])


def main(folder: Path, cut: bool) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "scripts/demo/tiny_model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = Qwen2Config(vocab_size=len(tokenizer), num_attention_heads=2, num_key_value_heads=1, **sizes)
    model = Qwen2ForCausalLM(config).eval()
    module = TextModule(config)
    module.processor = tokenizer
    script(pytest.MonkeyPatch(), tree)
    changes = {"sync_prompt_across_ranks": False, "ddp_timeout": 60, "max_steps": 2, "ddp_backend": "gloo"}
    trainer = text_trainer((module, model, tokenizer), folder, rows=4, **changes)
    if cut:
        trainer.forward.max_slots = len(trainer.encoder.encode(trainer.train_dataset[0]).ids) - 1 + 20
    plans = []
    original = trainer._compute_loss

    def compute_loss(*args):
        loss = original(*args)
        for found in trainer.forward._plans.values():
            plans.append(sum(bool((plan.slot_of >= 0).any()) for plan in found))
        return loss

    trainer._compute_loss = compute_loss
    trainer.train()
    rank = trainer.accelerator.process_index
    torch.save({"plans": plans, "weights": weights(trainer)}, folder / f"{rank}.pt")
    trainer.accelerator.wait_for_everyone()  # a process that leaves first can abort the other
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "cut")
