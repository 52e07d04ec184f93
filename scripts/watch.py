"""Shows training runs in the browser while they train: `python scripts/watch.py RUN [RUN ...] [--port 8765]`.

Serves the page of scripts/report.py on this machine only (127.0.0.1) and keeps it up to date: step and time left,
curves, rollout trees (if the run has `--log_trees every:N`), and evaluations inside the folder. It writes nothing and
does not affect the training. From another machine: ssh -L 8765:localhost:8765 HOST. Ctrl-C ends it. Exit status 2 for a
user's mistake, with one sentence.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _root import use_checkout

ROOT = use_checkout()
sys.path.insert(0, str(ROOT / "scripts"))

from report.live import LivePage, make_server

from task.errors import UserError
from task.own_tasks import add_task_dir
from task.task_loader import load_tasks


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="output_dir of a training run")
    parser.add_argument("--port", type=int, default=8765, help="port on 127.0.0.1, 0 for a free one (default 8765)")
    add_task_dir(parser)
    args = parser.parse_args(argv)
    try:
        if not 0 <= args.port <= 65535:
            raise UserError(f"--port {args.port}: it must be between 0 and 65535.")
        live = LivePage(args.folders, load_tasks())
        server = make_server(live, args.port)
    except UserError as error:
        print(f"watch.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"watch.py: port {args.port} cannot be used ({error.strerror}): name another by --port.", file=sys.stderr)
        return 2
    os.nice(10)  # a training run on the same cores has priority
    print(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
