"""How far two layouts of the same forward pass may be apart: by rounding, and not by another computation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

# In nats. In float32 every token counts. In bfloat16 logits between 16 and 32 are 0.125 apart, so single tokens may
# differ a lot. Rounding changes the mean and the 99.9th percentile little; a wrong position, a lost picture or a branch
# that sees its sibling changes them a lot (tests/trainer/logprobs/test_layout_gap.py).
MAXIMUM = 1e-3
MEAN, TAIL = 0.02, 0.4


@dataclass(frozen=True)
class LayoutGap:
    """|packed - dense| log-probs over tokens: mean, 99.9th percentile and maximum, in nats."""

    mean: float
    tail: float
    maximum: float

    @classmethod
    def of(cls, differences: Tensor) -> LayoutGap:
        gaps = differences.float().abs().flatten().sort().values
        tail = gaps[min(int(0.999 * len(gaps)), len(gaps) - 1)]
        return cls(gaps.mean().item(), tail.item(), gaps[-1].item())

    def fault(self, exact: bool) -> str | None:
        """Which bound is passed, in words, or None; NaN passes all. `exact`: computed in float32."""
        bounds = {"maximum": MAXIMUM} if exact else {"mean": MEAN, "tail": TAIL}
        names = {"maximum": "maximum", "mean": "mean", "tail": "99.9th percentile"}
        return next((f"bound of the {names[n]}: {b:g}" for n, b in bounds.items() if not getattr(self, n) <= b), None)

    def __str__(self) -> str:
        return f"at most {self.maximum:.1e}, {self.mean:.1e} on average"
