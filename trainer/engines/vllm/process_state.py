"""What starting vLLM changes in its process, put back: random state, threads, environment, default dtype."""

from __future__ import annotations

import gc
import os
import random
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def process_state_kept(environment: dict[str, str]):
    """Inside the block `environment` is set; afterwards the process is as before.

    vLLM seeds all generators, replaces `torch.set_num_threads` by a function that does nothing, sets variables of
    OpenMP, inductor and the loader, and exempts all objects from garbage collection.
    """
    variables = dict(os.environ)
    numbers = torch.get_rng_state(), np.random.get_state(), random.getstate()
    device_numbers = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    threads, set_num_threads, dtype = torch.get_num_threads(), torch.set_num_threads, torch.get_default_dtype()
    try:
        os.environ.update(environment)
        yield
    finally:
        for name in set(os.environ) - set(variables):
            del os.environ[name]
        os.environ.update(variables)
        torch.set_rng_state(numbers[0])
        np.random.set_state(numbers[1])
        random.setstate(numbers[2])
        if device_numbers:
            torch.cuda.set_rng_state_all(device_numbers)
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        gc.unfreeze()
