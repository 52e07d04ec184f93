"""The report of a run as an artifact of its trackers: curves, and trees with their pictures, in one HTML file."""

from __future__ import annotations

import importlib
from pathlib import Path

from transformers import TrainerCallback

from report.page import page_content, render_page
from report.sources import find_sources

TRACKERS = ("wandb", "trackio")


class TrackedReport(TrainerCallback):
    """Writes report.html into the output folder when training ends, and logs it to the run's trackers.

    The artifact is called `report` in both wandb and trackio. A tracker that fails is named in a warning: the run's
    weights and logs are in its folder already.
    """

    def __init__(self, tasks: dict, trackers: list[str]):
        self.tasks, self.trackers = tasks, trackers

    @classmethod
    def add_to(cls, trainer, tasks: dict) -> None:
        """Adds the callback if the trainer reports to a tracker that keeps artifacts.

        It comes before the trackers' own callbacks, which close their runs when training ends.
        """
        trackers = [name for name in TRACKERS if name in trainer.args.report_to]
        if trackers:
            trainer.callback_handler.callbacks.insert(0, cls(tasks, trackers))

    def on_train_end(self, args, state, control, **kwargs):
        if not state.is_world_process_zero:
            return
        path = Path(args.output_dir) / "report.html"
        path.write_text(render_page(path.parent.name, *page_content(find_sources([path.parent]), self.tasks)), "utf-8")
        for name in self.trackers:
            try:
                importlib.import_module(name).log_artifact(str(path), name="report", type="report")
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                print(f"warning: {name} did not take {path} as an artifact: {reason}", flush=True)
