"""Inputs of TRL's loss for micro-batches of tree rows: whole trees, the parts of the objective, sequence ratios."""

# B rows of a process, T completion tokens, S micro-batches of a generation

from __future__ import annotations

from collections.abc import Callable

import torch

from trainer.logprobs.micro_batches import take_rows, token_counts

PARTS = ("thought", "answer")


def micro_batches(output: dict, partition: list[list[int]], accumulation: int, sums: Callable) -> list[dict]:
    """S micro-batches of whole trees, each with the token counts of its own optimiser step.

    Args:
        output: the tensors of a generation.
        partition: the rows of each micro-batch.
        accumulation: micro-batches per optimiser step.
        sums: sums a tensor over all processes.

    Each micro-batch has `num_items_in_batch` as TRL reads it, for a split objective also `thought_items` and
    `answer_items`, and `token_counts`: its trained tokens over all processes (all, in thoughts, in answers).
    """
    steps, batches = len(partition), [take_rows(output, rows) for rows in partition]
    counts = sums(torch.stack([token_counts(batch) for batch in batches]))
    for start in range(0, steps, accumulation):
        # TRL expects the token count of a generation and rescales it by accumulation / steps; this is the count of the
        # optimiser step, scaled so that the factors cancel.
        items = counts[start : start + accumulation].sum(dim=0) * steps / accumulation
        for batch in batches[start : start + accumulation]:
            batch["num_items_in_batch"], batch["thought_items"], batch["answer_items"] = items
    for batch, (total, thought, answer) in zip(batches, counts.tolist(), strict=True):
        batch["token_counts"] = {"all": total, "thought": thought, "answer": answer}
    return batches


def part_inputs(inputs: dict, part: str) -> dict:
    """The inputs of TRL's loss over the tokens of one of `PARTS`, with its own advantages and token count."""
    mask = inputs["thought_mask"] if part == "thought" else 1 - inputs["thought_mask"]
    return {
        **inputs,
        "advantages": inputs[f"{part}_advantages"],
        "tool_mask": inputs["tool_mask"] * mask,
        "num_items_in_batch": inputs[f"{part}_items"],
    }


def part_weights(args) -> list[tuple[str, float]]:
    """Each of `PARTS` with the weight of its term (policy and KL) in a split objective."""
    return list(zip(PARTS, (args.thought_weight, 1.0), strict=True))


def varies_within_rows(inputs: dict, shared_token_weight: str) -> bool:
    """Whether the tokens of a row differ in advantage or weight."""
    return inputs["advantages"].dim() == 2 or shared_token_weight == "once"


def sequence_ratio_inputs(inputs: dict, logps: torch.Tensor) -> dict:
    """Inputs with which TRL's token-level loss uses a sequence's ratio for each of its tokens.

    A sequence is a row or, with `sequence_ids`, one part of it.

    TRL's sequence level has one term per row and would average the advantages of its tokens. In GSPO-token (arXiv
    2507.18071, Eq. 13) the ratio is sg[s_i] * pi / sg[pi]: its value is s_i, its gradient the token's own. With old
    log-probs sg[log pi] - log s_i, TRL's token ratio is exactly this.

    Args:
        inputs: may hold `sequence_ids` (B, T), from 0: tokens of a row with the same id form a sequence.
        logps: (B, T) log-probs of the policy, detached.
    """
    old = inputs.get("old_per_token_logps")
    if old is None:  # the policy has not moved: every ratio is 1
        return inputs
    mask = inputs["completion_mask"] * (inputs["tool_mask"] > 0)
    ids = inputs.get("sequence_ids")
    ids = torch.zeros_like(mask, dtype=torch.long) if ids is None else ids
    log_ratio = _means((logps - old) * mask, mask.to(logps.dtype), ids)
    return {**inputs, "old_per_token_logps": logps - log_ratio}


def _means(values: torch.Tensor, mask: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(B, T) for each token, the mean of the values of its row's tokens with the same id; `values` are 0 off `mask`."""
    nothing = values.new_zeros(len(ids), int(ids.max()) + 1)
    sums, counts = (nothing.scatter_add(1, ids, of_tokens) for of_tokens in (values, mask))
    return (sums / counts.clamp(min=1)).gather(1, ids)
