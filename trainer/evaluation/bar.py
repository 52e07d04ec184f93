"""A progress bar for evaluations: records done, tokens/s and the time left."""

from __future__ import annotations

import time

from tqdm import tqdm


class EvaluationBar:
    """A progress bar over records with tokens/s and the time left; pass it to `predict` as `progress`.

    Args:
        total: records of this process.
        done: number of records that an earlier run finished.
        shown: if False, only counts.
    """

    def __init__(self, total: int, done: int = 0, shown: bool = True):
        self.tokens, self.started = 0, time.monotonic()
        self.bar = tqdm(total=total, initial=done, unit="record", desc="evaluation", disable=not shown, leave=False)

    def __call__(self, records: int, tokens: int) -> None:
        self.tokens += tokens
        self.bar.set_postfix_str(f"{self.tokens / self.seconds:.0f} tokens/s", refresh=False)
        self.bar.update(records)

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.started, 1e-9)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bar.close()
