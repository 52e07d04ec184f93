"""The value of one update of GRPO on chains and of Tree-GRPO on the search demo, from gradients at a fixed policy.

    python scripts/lab/agent_gradients.py --output_dir runs/agent_gradients   # 15 minutes on one core
    python scripts/lab/agent_gradients.py --output_dir runs/agent_gradients --rows chains trees --steps 4

Training runs differ as much between seeds as between methods; gradients are more informative for the same time. A
policy is trained on chains for --policy_steps updates and then fixed. g is a row's gradient on one batch of 16 prompts,
E its mean over --steps batches, and g* the gradient of the expected reward: from 40 other batches of four chains, each
against the mean of the other three, summed over tokens, without division by a standard deviation. Printed per row:

    tokens:    sampled tokens per batch
    gain:      learning rate * sum over weights of g* E[g] / sqrt(E[g^2]): the first-order increase of the expected
               reward by an update of Adam, and its standard error over batches
    first:     the same, with gradients of the chains' first turns only
    later:     the same for all other turns
    per_1000:  gain per 1,000 sampled tokens
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import fmean

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import torch
import yaml
from transformers import set_seed

from config.grpo_config import GRPOConfig
from config.methods.tree_grpo import leaves_of
from dataset.dataset_grpo import build_dataset
from model.loading import load_policy
from task.rewards.router import task_rewards
from task.task_loader import load_tasks
from trainer.grpo_ma_trainer import GRPOMATrainer

RECIPE = yaml.safe_load((ROOT / "config" / "recipes" / "tree_grpo_demo.yaml").read_text())
NOT_TRAINING = ("dataset_name", "model_name_or_path", "output_dir", "use_peft")  # keys of the recipe
PROMPTS = 16  # per step
CHAINS = {"tree_num": 4, "expand_num": 0, "advantage": "inter"}
ROWS = {
    "chains": CHAINS,
    "chains, token mean": CHAINS | {"loss_type": "dapo"},
    "trees": {},
    "trees, inter": {"advantage": "inter"},
    "trees, intra": {"advantage": "intra"},
    "trees, token mean": {"loss_type": "dapo"},
    "trees, once": {"shared_token_weight": "once"},
    "trees 3, 1, 1": {"tree_num": 3, "expand_num": 1},
    "trees, code": {"fork_choice": "code"},
}
REFERENCE_STEPS = 40


def settings_for(changes: dict) -> dict:
    """GRPOConfig's arguments: the recipe's, then `changes`; PROMPTS prompts per step."""
    settings = {key: value for key, value in RECIPE.items() if key not in NOT_TRAINING} | changes
    settings["environment_args"] = json.dumps(settings["environment_args"])
    rows = PROMPTS * leaves_of(argparse.Namespace(**{"branches_per_node": 1} | settings))
    return settings | {"per_device_train_batch_size": rows, "use_cpu": True, "disable_tqdm": True}


def make_trainer(settings: dict, seed: int, kind=GRPOMATrainer, model=None):
    """A trainer of class `kind` on the demo's questions, from the shipped or a folder's weights."""
    torch.set_num_threads(1)
    set_seed(seed)
    tasks = load_tasks()
    module, policy, tokenizer = load_policy(str(model or ROOT / RECIPE["model_name_or_path"]), dtype="float32")
    rows = build_dataset([str(ROOT / RECIPE["dataset_name"])], tasks)
    args = GRPOConfig(seed=seed, data_seed=seed, **settings)
    return kind(policy, task_rewards(tasks), args, rows, processing_class=tokenizer, module=module, tasks=tasks)


class Gradients(GRPOMATrainer):
    """Records each step's gradients, of all turns (gain), of first turns and of later ones, and its sampled tokens."""

    parts = ("gain", "first", "later")

    def _compute_loss(self, model, inputs):
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        first = self._first_turns(inputs)
        masks = {"gain": 1, "first": first, "later": 1 - first}
        for name in self.parts:
            loss = super()._compute_loss(model, inputs | {"tool_mask": inputs["tool_mask"] * masks[name]})
            found = torch.autograd.grad(loss, weights, retain_graph=True)
            self.kept.setdefault(name, []).append(torch.cat([one.flatten() for one in found]))
        nodes = [node for tree in self.generation.rollout.trees for node in tree.nodes]
        self.sampled.append(sum(len(node.token_ids) for node in nodes if node.sampled))
        return loss

    def _first_turns(self, inputs) -> torch.Tensor:
        """(B, T) mask of the first turn of each row."""
        rollout, rows = self.generation.rollout, inputs["row_ids"].tolist()
        roots = [rollout.trees[rollout.row_tree[row]].nodes[rollout.root(row)] for row in rows]
        lengths = torch.tensor([len(root.token_ids) for root in roots])
        return (torch.arange(inputs["completion_ids"].size(1)) < lengths[:, None]).long()


class Reference(Gradients):
    """The same for all turns only, with the reward minus the mean of the prompt's other chains as advantage."""

    parts = ("gain",)

    def _compute_loss(self, model, inputs):
        rewards = (self.generation.rewards * self.reward_weights).nansum(dim=1).reshape(-1, self.args.leaves)
        others = (rewards.sum(1, keepdim=True) - rewards) / (self.args.leaves - 1)
        return super()._compute_loss(model, inputs | {"advantages": (rewards - others).flatten()[inputs["row_ids"]]})


def collect(kind, changes: dict, steps: int, seed: int, folder: Path) -> Gradients:
    """A trainer after `steps` batches, without any update."""
    settings = settings_for(changes | {"learning_rate": 0.0, "log_trees": None})
    settings |= {"output_dir": tempfile.mkdtemp(prefix="train_", dir=folder), "max_steps": steps}
    trainer = make_trainer(settings, seed, kind=kind, model=folder / "policy")
    trainer.kept, trainer.sampled = {}, []
    trainer.train()
    return trainer


def gain(gradients: list[torch.Tensor], reference: torch.Tensor) -> tuple[float, float]:
    """(mean, standard error over batches) of the increase of the expected reward by an update of Adam."""
    stacked = torch.stack(gradients)
    each = stacked / (stacked.square().mean(0).sqrt() + 1e-12) @ reference * RECIPE["learning_rate"]
    return each.mean().item(), (each.std() / len(each) ** 0.5).item()


def measure(changes: dict, steps: int, folder: Path, reference: torch.Tensor) -> dict:
    trainer = collect(Gradients, changes, steps, 7, folder)
    found = {name: gain(kept, reference) for name, kept in trainer.kept.items()}
    tokens = fmean(trainer.sampled)
    return {"tokens": tokens, **found, "per_1000": [1000 * value / tokens for value in found["gain"]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--steps", type=int, default=20, help="batches per row")
    parser.add_argument("--policy_steps", type=int, default=14, help="updates on chains before the measurement")
    args = parser.parse_args()
    folder = args.output_dir
    settings = settings_for(CHAINS | {"log_trees": None, "max_steps": args.policy_steps})
    folder.mkdir(parents=True, exist_ok=True)
    trainer = make_trainer(settings | {"output_dir": tempfile.mkdtemp(prefix="train_", dir=folder)}, seed=11)
    trainer.train()
    trainer.model.save_pretrained(folder / "policy")
    trainer.processing_class.save_pretrained(folder / "policy")
    trainer = collect(Reference, CHAINS | {"loss_type": "dr_grpo"}, REFERENCE_STEPS, 100, folder)
    length = trainer.args.max_completion_length  # dr_grpo divides by it
    reference = torch.stack(trainer.kept["gain"]).mean(0) * length
    found = {}
    for name in args.rows:
        row = found[name] = measure(ROWS[name], args.steps, folder, reference)
        cells = [f"{key} {row[key][0]:.5f} ± {row[key][1]:.5f}" for key in ("gain", "first", "later", "per_1000")]
        print(f"{name:20} tokens {row['tokens']:.0f}  {'  '.join(cells)}", flush=True)
    (folder / "agent_gradients.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
