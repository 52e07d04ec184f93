"""Console output of a training run: one short line per log step, and a bar while rollouts are sampled."""

from __future__ import annotations

import logging
import sys
import time
import warnings

from tqdm import tqdm
from transformers.trainer_callback import ProgressCallback

from trainer.logs.outcome import failed_share, zero_spread

RECORD_DUMP = "All reward functions returned None"  # of TRL 1.16's warning

WIDTH = 79  # characters of a step line: it does not wrap in a terminal of 80 columns
SHOWN = {  # most important first: what exceeds WIDTH is left out
    "reward": "reward",
    "rewards/accuracy_reward/mean": "acc",
    "rewards/format_reward/mean": "format",
    "failed": "failed",
    "flat": "flat",
    "grad_norm": "grad",
    "step_time": "s/step",
    "thought/unclosed_share": "unclosed",
    "tokens/generated": "tokens",
    "variance/rho": "rho",
}
SPEEDS = ("_runtime", "_per_second")  # of evaluations
SHARES = ("failed", "flat", "thought/unclosed_share")


def shows_bars(args) -> bool:
    """Whether this process shows progress bars: the first one, in a terminal; a job's log file has lines alone."""
    return args.process_index == 0 and not args.disable_tqdm and sys.stderr.isatty()


def show_short_progress(trainer) -> None:
    """`ShortProgress` in place of the library's progress bar, unless that is disabled (`disable_tqdm`)."""
    if not trainer.args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(ShortProgress(shows_bars(trainer.args)))


class ShortProgress(ProgressCallback):
    """One line per log entry with the few metrics worth watching; all others go to the log back ends and log.jsonl.

    In a terminal, also a bar of the steps, the time left, and tokens/s (TRL's `num_tokens`: prompts and completions of
    all processes).

    Args:
        bars: whether there is a bar.
    """

    def __init__(self, bars: bool = True):
        super().__init__()
        self.bars = bars
        self._counted: tuple[float, float] | None = None  # time and num_tokens of the previous log entry

    def on_train_begin(self, args, state, control, **kwargs):
        if self.bars:
            super().on_train_begin(args, state, control, **kwargs)

    def on_step_end(self, args, state, control, **kwargs):
        if self.bars:
            super().on_step_end(args, state, control, **kwargs)

    def on_prediction_step(self, args, state, control, **kwargs):
        if self.bars:
            super().on_prediction_step(args, state, control, **kwargs)

    def on_train_end(self, args, state, control, **kwargs):
        if self.bars:
            super().on_train_end(args, state, control, **kwargs)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or not logs:
            return
        if "num_tokens" in logs and self.training_bar is not None:
            now, tokens = time.monotonic(), logs["num_tokens"]
            if self._counted is not None and now > self._counted[0]:
                rate = (tokens - self._counted[1]) / (now - self._counted[0])
                self.training_bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
            self._counted = now, tokens
        for line in step_lines(logs, state.global_step, state.max_steps):
            if self.training_bar is not None:
                self.training_bar.write(line)
            else:
                print(line, flush=True)


def step_lines(logs: dict, step: int, steps: int) -> list[str]:
    """The line of a log entry, of at most `WIDTH` characters; one line per metric of an evaluation."""
    known = logs | {"failed": _failed(logs), "flat": zero_spread(logs)}
    if "reward" not in logs and "loss" not in logs:
        known = {}
    shown = SHOWN if "reward" in logs else {"loss": "loss"} | SHOWN  # a loss of RL says nothing
    metrics = [
        f"{label} {known[name]:.0%}" if name in SHARES else f"{label} {_short(known[name])}"
        for name, label in shown.items()
        if known.get(name) is not None
    ]
    if metrics:
        return [_fitting(f"step {step}/{steps}:", metrics)]
    evaluation = [
        f"{name.removeprefix('eval_')} {_short(value)}"
        for name, value in logs.items()
        if "eval_" in name and not name.endswith(SPEEDS)
    ]
    return [_fitting(f"step {step}/{steps} evaluation:", [one]) for one in evaluation]


def _failed(logs: dict) -> float | None:
    """The share of completions without a usable reward: their rollout failed, or a reward did."""
    shares = [share for share in (logs.get("rollout/failed_share"), failed_share(logs)) if share is not None]
    return max(shares, default=None)


def _fitting(head: str, words: list[str]) -> str:
    line = head
    for i, word in enumerate(words):
        longer = f"{line} {word}" if i == 0 else f"{line}, {word}"
        if len(longer) > WIDTH:
            break
        line = longer
    return line


class RolloutBar:
    """A bar under the training bar while a generation is sampled: tokens, tokens/s and the time left.

    The total is unknown, so the previous generation's number of tokens serves as the estimate (the first generation has
    none). The bar appears after `DELAY` seconds, so that quick generations do not flicker.

    Attributes:
        tokens, seconds: of the most recent call of the engine.
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


logging.getLogger("trl.trainer.grpo_trainer").addFilter(without_record_dumps)


def _short(value) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
