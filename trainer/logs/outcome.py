"""What a run's generations came to: whether rewards failed, whether there was anything to learn, said at its end."""

from __future__ import annotations

import math
import sys

from transformers import TrainerCallback

FAILURES = ("failed", "timeout", "non_finite")  # as task/rewards/router.py counts them
ZERO_SPREAD = ("answer/zero_spread", "advantages/zero_spread", "inter/zero_spread")  # of prompts, by method
IN_A_ROW = 3  # generations in which every reward failed, after which a run ends with an error status


def failure_sums(counts: dict[str, list[float]], functions: list[str], scored: int) -> dict[str, tuple[float, float]]:
    """rewards/FUNCTION/failed_share -> (completions on which the function failed, completions it was given).

    Args:
        counts: what the reward functions of one process logged.
        scored: completions of this process, without those of failed rollouts.
    """
    failed = {name: sum(sum(counts.get(f"rewards/{name}/{kind}", [])) for kind in FAILURES) for name in functions}
    return {f"rewards/{name}/failed_share": (count, scored) for name, count in failed.items()}


def failed_share(metrics: dict) -> float | None:
    """The largest share of completions on which a reward function failed; None where it is unknown."""
    shares = [
        value for name, value in metrics.items() if name.startswith("rewards/") and name.endswith("/failed_share")
    ]
    return max((share for share in shares if not math.isnan(share)), default=None)


def zero_spread(metrics: dict) -> float | None:
    """The share of prompts whose completions all have the same reward; None where it is unknown."""
    return next((metrics[name] for name in ZERO_SPREAD if name in metrics), None)


class Outcome(TrainerCallback):
    """Collects the metrics of generations, and says at the end of training what was wrong and where to look.

    Args:
        trainer: its `reward_funcs` hold the first error of this process, as `first_error`.

    Attributes:
        scored, failing, flat: generations with rewards; of these, those in which a reward function failed on every
            completion, and those in which all completions of every prompt had the same reward.
        longest: the most generations in a row in which a reward function failed on every completion.
        applied: name of each reward function in a log -> whether it scored any completion so far.
    """

    def __init__(self, trainer):
        self.trainer = trainer
        self.scored = self.failing = self.flat = self.longest = 0
        self.failures = 0.0  # sum of the shares
        self.applied: dict[str, bool] = {}
        self._row = 0

    def add(self, metrics: dict) -> None:
        """Counts the metrics of a generation; they may arrive in several parts."""
        share, spread = failed_share(metrics), zero_spread(metrics)
        if share is not None:
            self.scored += 1
            self.failures += share
            self.failing += share == 1
            self._row = self._row + 1 if share == 1 else 0
            self.longest = max(self.longest, self._row)
        if spread is not None:
            self.flat += spread == 1

    @property
    def failed(self) -> bool:
        """Whether a reward failed on every completion of `IN_A_ROW` generations in a row, or of the whole run."""
        return self.longest >= IN_A_ROW or self.nothing_scored

    @property
    def nothing_scored(self) -> bool:
        """Whether a reward failed on every completion of every generation."""
        return 0 < self.scored == self.failing

    def sentence(self) -> str | None:
        """What was wrong with the run, and where to look; None if nothing was."""
        first = next((f.first_error for f in self.trainer.reward_funcs if getattr(f, "first_error", None)), None)
        first = f" (the first: {first})" if first else " (the first error is printed above)"
        look = f"{self.trainer.args.output_dir}/log.jsonl"
        if self.failed:
            return (
                f"a reward failed on every completion of {self.longest} generations in a row{first}: nothing was "
                "learnt from these; repair the reward, or the records it cannot score; rewards/*/failed_share in "
                f"{look} shows when"
            )
        if 0 < self.scored <= self.flat:
            return (
                f"nothing was learnt: in each of the {self.scored} generations, all completions of every prompt had "
                f"the same reward, so that all advantages were 0; look at the rewards in {look} and at completions "
                "(--log_trees every:1, then scripts/report.py): if all fail, warm-start the model "
                "(scripts/train/sft.py) or take easier data; if all succeed, take harder data"
            )
        if self.failures:
            share = self.failures / self.scored
            return f"a reward failed on {share:.1%} of the completions{first}; see rewards/*/failed_share in {look}"
        return None

    def never_applied(self) -> str | None:
        """Names the reward functions that gave every completion None; None if there are none."""
        idle = [name for name, applied in self.applied.items() if not applied]
        if not idle or self.failures:
            return None
        return (
            f"{', '.join(idle)} scored no completion of the run and took no part in the training: each got None, which "
            "stands for a reward that does not apply; return a number, or leave the function out"
        )

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "reward" in (logs or {}):  # metrics of generations; a mean over no completion is left out
            for name in self.trainer.reward_func_names:
                self.applied[name] = self.applied.get(name, False) or f"rewards/{name}/mean" in logs

    def on_train_end(self, args, state, control, **kwargs):
        for said in filter(None, (self.sentence(), self.never_applied())):
            if state.is_world_process_zero:
                print(f"warning: {said}", file=sys.stderr, flush=True)
