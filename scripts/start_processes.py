"""`start_processes.py MODULE ARGUMENTS` runs a launcher of torch or accelerate, like `python -m MODULE ARGUMENTS`.

A process that fails has printed its error. The launchers would add their own traceback and exit with status 1; this
exits with one sentence and the status of the process that failed first.
"""

import runpy
import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main() -> int:
    sys.argv = sys.argv[1:]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        status = failure.exitcode
        how = f"exited with status {status}" if status > 0 else f"was killed by {failure.signal_name()}"
        print(f"process {rank} {how}: see its output above", file=sys.stderr)
        return status if status > 0 else 128 - status
    return 0


if __name__ == "__main__":
    sys.exit(main())
