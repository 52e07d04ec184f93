"""Settings of RLOO (arXiv 2402.14740): G independent completions per prompt, each compared with the others.

RLOO treats a completion as one action: its gradient sums over the tokens, and no standard deviation divides. That is
loss_type "dr_grpo" (up to a constant factor) and scale_rewards "none".
"""

from __future__ import annotations

from config.chains import PRESET, SIZE, check_chains
from config.method_settings import MethodSettings

SETTINGS = MethodSettings(
    about="G chains, each against the others",
    preset=PRESET | {"loss_type": "dr_grpo", "scale_rewards": "none"},
    size=lambda args: SIZE,
    check=check_chains,
)
