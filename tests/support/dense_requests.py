"""A serving engine without a cache, for tests: every step is a pass over the whole of each request."""

import copy
from types import SimpleNamespace

import torch

from trainer.engines.request_engine import RequestEngine
from trainer.engines.request_sampler import RequestSampler
from trainer.engines.requests import Sampled
from trainer.engines.sampling import Sampling


class DenseRequests:
    """`Requests` on a text model; it tells what a cache of `block_size` without evictions would find.

    Attributes:
        running: name -> request and the tokens it sampled.
        most: requests that ran at the same time at most.
    """

    def __init__(self, setup, block_size: int = 4):
        module, self.model, processor = setup
        self.block_size, self.vocab_size = block_size, self.model.config.get_text_config().vocab_size
        self.eos_ids = set(module.eos_token_ids(processor))
        self.sampler = RequestSampler(module.forbidden_token_ids(processor))
        self.running, self.known, self.aborted, self.most, self.version = {}, set(), [], 0, 0

    def add(self, request):
        assert request.name not in self.running and not request.media
        self.running[request.name] = SimpleNamespace(request=request, tokens=[])
        self.most = max(self.most, len(self.running))

    @torch.no_grad()
    def step(self):
        live = list(self.running.values())
        paths = [[*one.request.ids, *one.tokens] for one in live]
        logits = torch.stack([self.model(torch.tensor([path])).logits[0, -1] for path in paths])
        draws, counts = [one.request.draw for one in live], [len(one.tokens) for one in live]
        drawn = self.sampler(logits, draws, counts, lambda row: paths[row])
        found = []
        for one, path, *values in zip(live, paths, *(column.tolist() for column in drawn), strict=True):
            cached = None if one.tokens else self._cached(path)
            self.known |= {tuple(path[:end]) for end in range(self.block_size, len(path) + 1, self.block_size)}
            found.append(Sampled(one.request.name, *values, cached))
            one.tokens.append(values[0])
            if values[0] in self.eos_ids or len(one.tokens) == one.request.max_tokens:
                del self.running[one.request.name]
        return found

    def abort(self, names):
        for name in names:
            self.aborted.append(name)
            self.running.pop(name, None)

    def load(self, weights):
        """Into a copy of the model, by the names of its state."""
        self.model, self.known, self.version = copy.deepcopy(self.model), set(), self.version + 1
        fault = self.model.load_state_dict(dict(weights), strict=False)
        assert not fault.unexpected_keys and not fault.missing_keys, fault

    def wake(self):
        self.awake = True

    def rest(self):
        self.awake = False

    def _cached(self, path):
        """Tokens of the path in full blocks that earlier requests had computed; the last token is always computed."""
        found = 0
        while found + self.block_size < len(path) and tuple(path[: found + self.block_size]) in self.known:
            found += self.block_size
        return found


def request_engine(setup, sampling=None, **options) -> RequestEngine:
    module, _, processor = setup
    ends = module.eos_token_ids(processor)
    return RequestEngine(DenseRequests(setup), module.tokenizer, sampling or Sampling(), ends, **options)
