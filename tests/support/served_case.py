"""Run by two processes under torch's launcher: training on one server, whose weights the first process sends.

torchrun --nproc_per_node 2 tests/support/served_case.py FOLDER MODEL URL
"""

import sys
from pathlib import Path

import torch
from paths import ROOT

sys.path.insert(0, str(ROOT))

from trainer_cases import text_trainer, weights

from model.registry import module_for


def main(folder: Path, source: str, url: str) -> None:
    torch.set_num_threads(1)
    module = module_for(source)
    model = module.load_model(source, dtype="float32", attn_implementation="sdpa").eval()
    served = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url, "max_prompt_length": 100}
    changes = {"ddp_timeout": 60, "max_steps": 2, "ddp_backend": "gloo", "learning_rate": 0.3, **served}
    setup = (module, model, module.load_processor(source))
    trainer = text_trainer(setup, folder, rows=4, sync_prompt_across_ranks=False, **changes)
    trainer.train()
    trees = [tree.tokens(leaf) for tree in trainer.generation.rollout.trees for leaf in tree.leaves()]
    gaps = [entry["sampling/policy_gap_max"] for entry in trainer.state.log_history if "loss" in entry]
    end = {"weights": weights(trainer), "trees": trees, "gaps": gaps}
    torch.save(end, folder / f"{trainer.accelerator.process_index}.pt")
    trainer.accelerator.wait_for_everyone()  # a process that leaves first can abort the other
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
