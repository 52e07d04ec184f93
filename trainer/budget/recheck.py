"""While a run trains: whether other K and M would by now have a smaller error for the same tokens."""

from __future__ import annotations

from statistics import fmean

from transformers import TrainerCallback

from trainer.budget.advice import advise, in_words, sizes_within
from trainer.budget.probe import Probe

NAMES = ("variance/between", "variance/within", "thought/length", "answer/length")


class Recheck(TrainerCallback):
    """Every `every` generations, prints the advice that the log of these generations gives; changes nothing.

    The log's variances are means over prompts, as a probe's are. It speaks up only if the error of the best pair is
    below that of the current one by more than `margin`.
    """

    def __init__(self, args, every: int, margin: float = 0.1):
        self.args, self.every, self.margin = args, every, margin
        self.seen: list[dict] = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if all((logs or {}).get(name) is not None for name in NAMES):
            self.seen.append({name: logs[name] for name in NAMES})
        if not self.seen or state.global_step % (self.every * self.args.window):
            return
        probe = Probe(*(fmean(entry[name] for entry in self.seen) for name in NAMES))
        self.seen = []
        if state.is_world_process_zero:
            print(advice_while_training(probe, self.args, self.margin), flush=True)


def advice_while_training(probe: Probe, args, margin: float) -> str:
    """One line if the current pair is good, else the advice."""
    now = (args.think_num, args.answer_num)
    budget = now[0] * (probe.thought_cost + now[1] * probe.answer_cost)
    pairs = [now, *(pair for pair in sizes_within(probe, budget) if pair != now)]
    if probe.between <= 0:
        return f"budget check: thoughts do not differ ({probe.within:.4g} between answers): a larger answer_num helps"
    advice = advise(probe, pairs, args.scale_rewards)
    current = next(one for one in advice.candidates if (one.think_num, one.answer_num) == now)
    if current.error <= (1 + margin) * advice.best.error:
        return f"budget check: {now[0]} x {now[1]} is within {margin:.0%} of the best for its tokens"
    return "budget check, for a further run: " + in_words(advice, probe, budget)
