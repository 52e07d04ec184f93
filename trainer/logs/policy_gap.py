"""How far the log-probs of training are from those with which the tokens were sampled, per part of the objective."""

# B rows of a micro-batch, T completion tokens

from __future__ import annotations

import numpy as np
import torch

from trainer.logs.metrics import Largest, Mean


def note_policy_gaps(trainer, old, inputs: dict, step: int) -> None:
    """Records the gaps of a generation's first optimiser step, which has the policy that sampled.

    Args:
        trainer: a GRPOMATrainer.
        old, inputs: as in `policy_gaps`.
        step: the number of the micro-batch in the run.
    """
    args, generation = trainer.args, trainer.generation
    step %= args.steps_per_generation * args.num_iterations
    if step < args.gradient_accumulation_steps:
        generation.gaps.append(policy_gaps(old, inputs, split=generation.two_terms))
    if step == args.gradient_accumulation_steps - 1:
        trainer.record_metrics(gap_metrics(trainer.processes.objects(generation.gaps)))


def policy_gaps(old, inputs: dict, split: bool) -> dict[str, np.ndarray]:
    """|log-prob of the policy - log-prob of the distribution sampled from| of the trained tokens of a micro-batch.

    The policy's log-probs are over the full vocabulary, the sampler's after masking forbidden tokens, top-k and so on.

    Args:
        old: (B, T) log-probs of the policy that sampled, as the trainer computes them.
        inputs: of the loss.
        split: whether thoughts and answers are two terms of the objective.

    Returns:
        The gaps in nats under "sampling", with `split` also under "thought" and "answer". A token whose sampler gave no
        log-prob (NaN) is left out.
    """
    gaps = (old.detach() - inputs["sampling_per_token_logps"]).abs()
    trained = (inputs["completion_mask"] * inputs["tool_mask"] > 0) & ~gaps.isnan()
    parts = {"sampling": trained}
    if split:
        thought = inputs["thought_mask"].bool()
        parts |= {"thought": trained & thought, "answer": trained & ~thought}
    return {part: gaps[mask].float().cpu().numpy() for part, mask in parts.items()}


def gap_metrics(found: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Mean, 99.9th percentile and maximum per part, over the micro-batches of all processes (see `policy_gaps`)."""
    metrics: dict[str, float] = {}
    for part in dict.fromkeys(part for gaps in found for part in gaps):
        gaps = np.concatenate([one[part] for one in found if part in one])
        if len(gaps):
            metrics[f"{part}/policy_gap"] = Mean(gaps.mean(), len(gaps))
            metrics[f"{part}/policy_gap_p999"] = Mean(np.quantile(gaps, 0.999), len(gaps))
            metrics[f"{part}/policy_gap_max"] = Largest(gaps.max())
    return metrics


def say_dropout(trainer) -> None:
    """Prints, for a model with dropout, that the gaps contain its noise."""
    modules = list(trainer.model.modules())
    rates = [m.p for m in modules if isinstance(m, torch.nn.Dropout)]
    rates += [getattr(m, "attention_dropout", None) or 0.0 for m in modules]
    if any(rates) and trainer.accelerator.is_main_process:
        print(
            f"dropout of {max(rates):g} is on in training and off in sampling: sampling/policy_gap contains its noise, "
            "and so do the weights of a sampling correction"
        )
