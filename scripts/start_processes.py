"""`start_processes.py MODULE ARGUMENTS` runs a launcher of torch or accelerate, like `python -m MODULE ARGUMENTS`.

A process that fails has printed its error. The launchers would add their own traceback and exit with status 1; this
exits with one sentence and the status of the process that failed first, or with 128 + N after signal N.
"""

import runpy
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main() -> int:
    sys.argv = sys.argv[1:]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        status = failure.exitcode
        print(f"process {rank} {how_it_ended(status, failure.signal_name())}", file=sys.stderr)
        return status if status > 0 else 128 - status
    except SignalException as error:  # the processes have received the signal, and have said what comes next
        return 128 + error.sigval
    return 0


def how_it_ended(status: int, signal: str) -> str:
    """How a process ended, in words; `status` is the negative number of a signal, or the exit status."""
    if status > 0:
        return f"exited with status {status}: see its output above"
    if signal == "SIGKILL":
        return (
            "was killed by SIGKILL, which leaves no message: most often the machine's memory ran out (dmesg or the "
            "cluster's log shows it)"
        )
    return f"was killed by {signal}"


if __name__ == "__main__":
    sys.exit(main())
