"""`start_processes.py MODULE ARGUMENTS` runs a launcher of torch or accelerate, as `python -m MODULE ARGUMENTS` does.

A process that ends with an error has said why. The launchers add a traceback of their own and end with status 1; this
ends with one sentence and with the status of the process that failed first.
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
        how = f"ended with status {status}" if status > 0 else f"was ended by {failure.signal_name()}"
        print(f"process {rank} {how}: its own lines above say why", file=sys.stderr)
        return status if status > 0 else 128 - status
    return 0


if __name__ == "__main__":
    sys.exit(main())
