"""Several processes of one evaluation (torchrun, accelerate launch): who am I, and waiting for each other."""

import os
from datetime import timedelta

# The others wait while the slowest finishes its records; a process that died is noticed by the launcher.
PATIENCE = timedelta(days=7)


class Processes:
    """This process among those of the launcher; alone without one. The processes exchange words, never tensors."""

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
        """Everybody's value, in order of the processes; returns when all have come here."""
        if self.count == 1:
            return [value]
        import torch.distributed

        values = [None] * self.count
        torch.distributed.all_gather_object(values, value)
        return values

    def end(self) -> None:
        """Leaves together with the others: one that goes first could abort the rest."""
        if self.count > 1:
            import torch.distributed

            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
