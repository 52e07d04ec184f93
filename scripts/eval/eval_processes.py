"""The processes of one evaluation (torchrun, accelerate launch): rank, gathering, and leaving together."""

import os
from datetime import timedelta

# Processes wait for the slowest one to finish its records; the launcher notices processes that died.
PATIENCE = timedelta(days=7)


class Processes:
    """This process among those of the launcher (a single one without). They exchange Python objects, never tensors."""

    def __init__(self):
        self.index, self.count = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.device_index = int(os.environ.get("LOCAL_RANK", 0))
        if self.count > 1:
            import torch.distributed

            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group("gloo", timeout=PATIENCE)

    @property
    def first(self) -> bool:
        return self.index == 0

    def gather(self, value) -> list:
        """The values of all processes, in rank order; blocks until all have called it."""
        if self.count == 1:
            return [value]
        import torch.distributed

        values = [None] * self.count
        torch.distributed.all_gather_object(values, value)
        return values

    def end(self) -> None:
        """Waits for all processes before leaving: one that leaves first could abort the others."""
        if self.count > 1:
            import torch.distributed

            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
