"""Writes runs and evaluations into one HTML file: curves, metrics, predictions on their pictures, rollout trees.

    python scripts/report.py runs/demo                        # writes runs/demo/report.html
    python scripts/report.py runs/a runs/b --output both.html # two runs, side by side on the records of both

A folder may be the output_dir of a training run (log.jsonl, trees.jsonl, trainer_state.json) or of an evaluation
(predictions.jsonl, metrics.json), or contain several of either, as the quickstart's does. The file is self-contained:
charts, thumbnails and data are inside, and it makes no connections. A run that is still training can be shown too;
scripts/watch.py keeps such a page up to date. Exit status 2 for a user's mistake, with one sentence.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _root import use_checkout

ROOT = use_checkout()
sys.path.insert(0, str(ROOT / "scripts"))

from report.page import page_content, render_page
from report.sources import find_sources

from task.errors import UserError
from task.own_tasks import add_task_dir
from task.task_loader import load_tasks


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="runs and evaluations")
    parser.add_argument("--output", type=Path, help="the file to write (default: report.html in the first folder)")
    add_task_dir(parser)
    args = parser.parse_args(argv)
    try:
        sources = find_sources(args.folders)
        title = " and ".join(folder.resolve().name for folder in args.folders)
        output = args.output or args.folders[0] / "report.html"
        if output.is_dir():
            raise UserError(f"--output {output} is a folder: name a file, such as {output / 'report.html'}.")
        page = render_page(title, *page_content(sources, load_tasks()))
        try:
            output.write_text(page, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{output} cannot be written ({error.strerror}): name another file by --output.") from error
    except (UserError, OSError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    print(f"written to {output} ({output.stat().st_size / 2**20:.1f} MiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
