"""vLLM engines for the tests: one per architecture and process, since each takes seconds to start."""

import torch

from trainer.engines.request_engine import RequestEngine
from trainer.engines.sampling import Sampling
from trainer.engines.vllm.size import Size
from trainer.engines.vllm.start import start
from trainer.engines.weights import whole_weights

STARTED = {}
SIZE = Size(max_length=1024, rows=64, memory=0.1)


def colocated(setup):
    """vLLM with the weights of the setup's model."""
    module, model, processor = setup
    key = model.config.to_json_string()
    if key not in STARTED:
        ends, forbidden = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
        STARTED[key] = start(model.config, processor, model.dtype, SIZE, ends, forbidden)
    with torch.no_grad():
        STARTED[key].load(whole_weights(model))
    return STARTED[key]


def vllm_engine(setup, sampling: Sampling, **options) -> RequestEngine:
    module, _, processor = setup
    return RequestEngine(colocated(setup), module.tokenizer, sampling, module.eos_token_ids(processor), **options)
