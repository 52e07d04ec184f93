"""Console output of a training run: one short line per log step, and a bar while rollouts are sampled."""

from __future__ import annotations

import logging
import time
import warnings

from tqdm import tqdm
from transformers.trainer_callback import ProgressCallback

RECORD_DUMP = "All reward functions returned None"  # of TRL 1.16's warning

SHOWN = {
    "reward": "reward",
    "rewards/accuracy_reward/mean": "accuracy",
    "rewards/format_reward/mean": "format",
    "variance/rho": "rho",
    "thought/unclosed_share": "unclosed",
    "grad_norm": "grad",
    "tokens/generated": "tokens",
    "step_time": "s/step",
}


class ShortProgress(ProgressCallback):
    """The progress bar with the few metrics worth watching; all others go to the log back ends and log.jsonl.

    It shows steps, the time left, and tokens/s (TRL's `num_tokens`: prompts and completions of all processes).
    """

    def __init__(self):
        super().__init__()
        self._counted: tuple[float, float] | None = None  # time and num_tokens of the previous log entry

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        if "num_tokens" in logs:
            now, tokens = time.monotonic(), logs["num_tokens"]
            if self._counted is not None and now > self._counted[0]:
                rate = (tokens - self._counted[1]) / (now - self._counted[0])
                self.training_bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
            self._counted = now, tokens
        metrics = [f"{label} {_short(logs[key])}" for key, label in SHOWN.items() if key in logs]
        evaluation = [f"{key} {_short(value)}" for key, value in logs.items() if key.startswith("eval_")]
        if metrics or evaluation:
            self.training_bar.write(f"step {state.global_step}: " + ", ".join(metrics or evaluation))


class RolloutBar:
    """A bar under the training bar while a generation is sampled: tokens, tokens/s and the time left.

    The total is unknown, so the previous generation's number of tokens serves as the estimate (the first generation has
    none). The bar appears after `DELAY` seconds, so that quick generations do not flicker.

    Attributes:
        tokens, seconds: of the most recent generation.
    """

    DELAY = 2.0

    def __init__(self, shown: bool):
        self.shown, self.tokens, self.seconds = shown, 0, 0.0
        self._bar, self._started = None, 0.0

    def __enter__(self):
        expected = self.tokens or None
        self._bar = tqdm(
            total=expected, desc="rollouts", unit=" tokens", leave=False, delay=self.DELAY, disable=not self.shown
        )
        self.tokens, self._started = 0, time.monotonic()
        return self

    def __call__(self, tokens: int) -> None:
        """`tokens`: sampled so far (the engine's `progress`)."""
        self._bar.update(tokens - self.tokens)
        self.tokens = tokens

    def __exit__(self, *_):
        self._bar.close()
        self.seconds = time.monotonic() - self._started

    def sums(self) -> dict[str, tuple[float, float]]:
        """Name -> (sum, count) of this process, in the form of `rollout_sums`: seconds, and tokens/s of one process."""
        return {
            "rollout/seconds": (self.seconds, 1),
            "rollout/tokens_per_second": (self.tokens, self.seconds),
        }


def warn_of_useless_rollouts(metrics: dict[str, float], args) -> None:
    """Warns, with the ways out, when a run would go on to its end and learn nothing.

    That is when most thoughts of a generation never closed, or nearly none of its prompts grew a completion; the most
    frequent error under tool/errors is named.

    Args:
        metrics: of the generation, over all processes.
        args: the GRPOConfig.
    """
    unclosed, failed = metrics.get("thought/unclosed_share", 0.0), metrics["rollout/failed_share"]
    if unclosed > 0.5:
        warnings.warn(
            f"{unclosed:.0%} of the thoughts never closed: raise max_thought_length ({args.max_thought_length}), or "
            f"warm-start the model to write {args.thought_end} (scripts/train/sft.py)",
            stacklevel=3,
        )
    if failed > 0.9:
        errors = {name: count for name, count in metrics.items() if name.startswith("tool/errors/")}
        worst = max(errors, key=errors.get, default=None)
        named = f", most often by {worst}" if worst is not None and errors[worst] > 0 else ""
        warnings.warn(
            f"nothing could be grown for {failed:.0%} of the prompts{named}: check their media or tools; such leaves "
            "have no reward and nothing is learnt from them",
            stacklevel=3,
        )


def without_record_dumps(record: logging.LogRecord) -> bool:
    """A filter for TRL's logger, which would print a whole record in each generation that has a leaf without reward.

    Failed rollouts are such leaves. Their share is logged as rollout/failed_share, see `warn_of_useless_rollouts`.
    """
    return RECORD_DUMP not in str(record.msg)  # accelerate prefixes the rank


def _short(value) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
