"""`think_num auto`, `answer_num auto`: K and M for a budget, from a probe of the policy that a run starts from."""

from __future__ import annotations

import json
from pathlib import Path

from task.errors import UserError
from trainer.budget.advice import advise, in_words, sizes_within
from trainer.budget.probe import Probe
from trainer.budget.sampled_probe import probe_policy

USUAL = (4, 4)  # K and M whose sampled tokens are the default budget
CHOICE = "sizes.json"  # in output_dir


def choose_sizes(parsed, names: list[str], rows: int | None, locate=str) -> dict[str, int]:
    """{name: number} for the names that are `auto`; prints why, and writes both numbers to output_dir.

    A resumed run takes what its first start wrote.

    Args:
        parsed: script, training and model arguments, with any numbers for `names`.
        rows: per_device_train_batch_size as given, which K * M must divide; None: not given.
        locate: path as given -> path to open.

    Raises:
        UserError: several processes; own rewards; no K and M fit; a probe without two scored answers to each of two
            thoughts.
    """
    script, args, model_args = parsed
    asked = " and ".join(f"{name}=auto" for name in names)
    if not {"think_num", "answer_num"} <= args.method_settings.keys():
        raise UserError(f"{asked}: {args.method} has no thoughts and answers; leave it out")
    if args.world_size > 1:
        raise UserError(
            f"{asked} probes on one process, and this run has {args.world_size}: run scripts/lab/advise.py first, and "
            "give the numbers that it prints"
        )
    if script.extra_reward:
        raise UserError(
            f"{asked} probes with the tasks' own rewards, so the choice would leave extra_reward="
            f"{script.extra_reward} out: give think_num and answer_num as numbers, or leave extra_reward out"
        )
    kept = Path(args.output_dir) / CHOICE
    if args.resume_from_checkpoint and kept.exists():
        found = json.loads(kept.read_text())
        print(f"{asked}: {found} from {kept}")
        return {name: found[name] for name in names}
    probe = probe_policy(script, args, model_args, locate)
    budget = script.rollout_budget or usual_budget(probe)
    fixed = {name: getattr(args, name) for name in ("think_num", "answer_num") if name not in names}
    pairs = sizes_within(probe, budget, **fixed, rows=rows)
    if not pairs:
        limit = "" if rows is None else f", whose product divides per_device_train_batch_size={rows},"
        raise UserError(
            f"{asked}: no think_num of at least 2 and answer_num{limit} fit a rollout_budget of {budget:.0f} tokens "
            f"with {probe.thought_cost:.0f} per thought and {probe.answer_cost:.0f} per answer: raise rollout_budget"
        )
    advice = advise(probe, pairs, args.scale_rewards or "group")
    print(f"{asked}: {in_words(advice, probe, budget)}", flush=True)
    found = {"think_num": advice.best.think_num, "answer_num": advice.best.answer_num}
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found) + "\n")
    return {name: found[name] for name in names}


def check_budget(script, args, provenance: dict[str, str]) -> None:
    """UserError for a budget, or a check of it, that would have no effect."""
    if script.rollout_budget is not None and not script.rollout_budget > 0:
        raise UserError(f"rollout_budget={script.rollout_budget} must be above 0")
    if script.rollout_budget is not None and "probe" not in provenance.values():
        raise UserError(
            f"rollout_budget={script.rollout_budget:g} is for think_num auto or answer_num auto, and both are numbers: "
            "leave it out"
        )
    if script.budget_check < 0:
        raise UserError(f"budget_check={script.budget_check} must be at least 0")
    if script.budget_check and args.method_settings.get("answer_num", 1) < 2:
        raise UserError(
            f"budget_check={script.budget_check} needs the variance of a thought's answers, which method "
            f"{args.method} with answer_num={args.method_settings.get('answer_num', 1)} does not measure: leave it out"
        )


def usual_budget(probe: Probe) -> float:
    """What 4 thoughts with 4 answers each cost."""
    return USUAL[0] * (probe.thought_cost + USUAL[1] * probe.answer_cost)
