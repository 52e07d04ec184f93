"""A tree of two thoughts and four answers whose losses are worked out by hand."""

import torch

BETA, CLIP, CISPO_CLIP = 0.04, 0.2, 1.1
# Two thoughts of 3 and 5 tokens, two answers of unequal length below each; only the first leaf is right.
THOUGHTS = [[301, 302, 303], [311, 312, 313, 314, 315]]
ANSWERS = [[[321, 322], [331, 332, 333, 334]], [[341], [351, 352, 353, 354, 355, 356]]]
LEAVES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def first_is_right(completion_ids, **kwargs):
    return [1.0 if ids == THOUGHTS[0] + ANSWERS[0][0] else 0.0 for ids in completion_ids]


def token_logps(model, prompt: list[int]) -> list[torch.Tensor]:
    """Log-probs of each leaf's tokens, one plain forward a leaf."""
    rows = []
    for k, m in LEAVES:
        completion = THOUGHTS[k] + ANSWERS[k][m]
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        rows.append(logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0])
    return rows
