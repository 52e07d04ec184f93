"""One training run until a budget is spent, and its evaluation; `compare.py` starts it for every line and seed.

    python scripts/lab/budget_run.py --config RECIPE --output_dir RUN --budget tokens=100000 --test_dataset TEST.yaml

Takes every flag of train.py. Written to the output folder: steps.jsonl, one line per optimiser step with cumulative
tokens (sampled, shared ones once), leaves (scored completions) and seconds (of the steps alone; CPU seconds with
use_cpu, which other processes affect less); then result.json, with the metrics of every record of the test set. The
same command continues from the newest checkpoint, if the settings save any, or else starts again. Ends with status 2
for a user's mistake.
"""

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]
from _root import locate, use_checkout

ROOT = use_checkout()

from transformers import TrainerCallback

import train
from config.agents import parse_environment_args
from config.console import quiet_libraries
from config.grpo_config import GRPOConfig
from config.model_config import GRPOModelConfig
from config.output import begin_in, checkpoint_to_resume, make_output
from config.parser import RecipeParser
from config.script_arguments import GRPOScriptArguments
from dataset.dataset_grpo import build_dataset
from task.errors import UserError
from task.own_tasks import use_task_dir
from trainer.evaluation.item_metrics import item_metrics
from trainer.evaluation.predict import predict
from trainer.policies.agent.build import policies_of_evaluation

UNITS = ("tokens", "leaves", "seconds", "updates")
ENDLESS = 1_000_000  # optimiser steps


@dataclass
class RunArguments:
    """Arguments of budget_run.py besides those of train.py."""

    budget: str = field(default="", metadata={"help": "UNIT=NUMBER, UNIT one of " + ", ".join(UNITS) + "."})
    test_dataset: list[str] = field(default_factory=list, metadata={"help": "Manifests that are evaluated at the end."})
    test_samples: int = field(default=2, metadata={"help": "Completions per record of the test set, at temperature 1."})
    test_by: str | None = field(
        default=None, metadata={"help": "A key of the test records: accuracy is also given for each of its values."}
    )
    test_batch: int = field(default=64, metadata={"help": "Completions decoded together in the test."})


def budget_of(text: str) -> tuple[str, float]:
    """("tokens", 1000.0) of "tokens=1000"."""
    unit, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if unit not in UNITS or value < 0:
        raise UserError(f"--budget {text}: write UNIT=NUMBER, such as tokens=100000; units: {', '.join(UNITS)}")
    return unit, value


def check_schedule(args, unit: str) -> None:
    """UserError for a learning rate that depends on the number of steps, which a budget of `unit` leaves open."""
    name = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    if not name.startswith("constant"):
        raise UserError(
            f"lr_scheduler_type={name} depends on the number of steps, which a budget of {unit} leaves open: set it to "
            "constant_with_warmup"
        )
    if 0 < args.warmup_steps < 1:
        raise UserError(
            f"warmup_steps={args.warmup_steps} is a share of the steps, which a budget of {unit} leaves open: set a "
            "number of steps"
        )


class Spending(TrainerCallback):
    """Counts what a run spends, writes steps.jsonl, and stops training at the end of the generation that exceeds it.

    Args:
        file: steps.jsonl; its lines up to step `resumed` are kept and counted on from.
        unit, limit: the budget.
    """

    def __init__(self, file: Path, unit: str, limit: float, resumed: int):
        self.file, self.unit, self.limit, self.trainer = file, unit, limit, None
        kept = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() and resumed else []
        kept = [line for line in kept if line["step"] <= resumed]
        file.write_text("".join(json.dumps(line) + "\n" for line in kept))
        self.spent = kept[-1] if kept else {"step": 0, "tokens": 0, "leaves": 0, "seconds": 0.0, "wall": 0.0}
        self.seen = None

    def clocks(self) -> tuple[float, float]:
        wall = time.perf_counter()
        return (time.process_time() if self.trainer.args.use_cpu else wall), wall

    def on_step_begin(self, args, state, control, **kwargs):
        self.begun = self.clocks()

    def on_step_end(self, args, state, control, **kwargs):
        seconds, wall = (now - then for now, then in zip(self.clocks(), self.begun, strict=True))
        spent, generation = dict(self.spent), self.trainer.generation
        if generation is not self.seen:
            self.seen = generation
            trees = [*generation.rollout.trees, *generation.discarded]
            nodes = [node for tree in trees for node in tree.nodes]
            spent["tokens"] += sum(len(node.token_ids) for node in nodes if node.sampled)
            spent["leaves"] += len(generation.training.scored.row_tree)
            spent["leaves"] += generation.policy.leaves * len(generation.discarded)
        spent |= {"step": state.global_step, "seconds": spent["seconds"] + seconds, "wall": spent["wall"] + wall}
        self.spent = spent
        with self.file.open("a") as out:
            out.write(json.dumps(spent) + "\n")
        if state.global_step % args.window == 0 and self.unit != "updates" and spent[self.unit] >= self.limit:
            control.should_training_stop = True
        return control


def test(trainer, script, run: RunArguments) -> dict[str, dict[str, float]]:
    """{record id: its metrics} on the test set, with a fixed seed."""
    args = trainer.args
    rows = build_dataset([locate(path) for path in run.test_dataset], trainer.tasks, image_root=script.image_root)
    environment, length = parse_environment_args(args.environment_args), args.max_completion_length
    agents = policies_of_evaluation(args, environment, trainer.tasks, trainer._tokenizer, trainer.module, length)
    with trainer._generating(temperature=args.temperature) as engine:
        settings = {"max_new_tokens": length, "batch_size": run.test_batch, "num_samples": run.test_samples}
        settings |= {"seed": args.seed, "policy_of": agents if trainer.method.acts else None}
        found = predict(engine, trainer.module, rows, trainer.tasks, **settings)
    named = {}
    for item in found:
        metrics = item_metrics(item, trainer.tasks[item["question_type"]])
        kind = item["record"]["extra"].get(run.test_by)
        metrics |= {} if kind is None else {f"accuracy of {kind}": metrics["accuracy"]}
        named[item["id"]] = metrics | {"tokens": item["tokens"] / run.test_samples}
    return named


def main() -> int:
    quiet_libraries()
    parser = RecipeParser((RunArguments, GRPOScriptArguments, GRPOConfig, GRPOModelConfig))
    run, script, args, model_args = parser.parse()
    try:
        unit, limit = budget_of(run.budget)
        if not run.test_dataset:
            raise UserError("no test set: give --test_dataset MANIFEST.yaml")
        args.max_steps = max(1, int(limit)) if unit == "updates" else ENDLESS
        if unit != "updates":
            check_schedule(args, unit)
        use_task_dir(script.task_dir)
        make_output(args.output_dir)
        checkpoint = checkpoint_to_resume("auto", args.output_dir)
        begin_in(args.output_dir, checkpoint, "auto")
        trainer = train.build(script, args, model_args, parser.provenance)
        folder = Path(args.output_dir)
        resumed = int(checkpoint.rpartition("-")[2]) if checkpoint else 0
        spending = Spending(folder / "steps.jsonl", unit, limit, resumed)
        spending.trainer = trainer
        trainer.add_callback(spending)
        if limit and not (unit != "updates" and spending.spent[unit] >= limit):
            trainer.train(resume_from_checkpoint=checkpoint)
        if trainer.stopping.stopped:
            print(f"stopped after step {trainer.state.global_step}: the same command continues")
            return 3
        result = {"seed": args.seed, "budget": [unit, limit], "spent": spending.spent}
        result |= {"items": test(trainer, script, run)}
    except UserError as error:
        parser.error(str(error))
    unfinished = folder / "result.json.part"
    unfinished.write_text(json.dumps(result) + "\n")
    unfinished.replace(folder / "result.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
