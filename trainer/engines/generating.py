"""The engine that samples a trainer's rollouts: this project's on the policy, or vLLM on a copy of its weights."""

from __future__ import annotations

from contextlib import contextmanager

from trainer.engines.media_features import MediaFeatures
from trainer.engines.merged_lora import merged_lora
from trainer.engines.prepacked import prepacked
from trainer.engines.request_engine import RequestEngine
from trainer.engines.sampling import Sampler, Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.engines.whole_policy import whole_policy
from trainer.generation import Phase


@contextmanager
def generating(trainer, temperature: float):
    """An engine on the current weights; what it changes is restored, also after an error.

    Args:
        trainer: a GRPOMATrainer.
        temperature: 0 is greedy.
    """
    min_p = trainer.min_p or 0.0
    sampling = Sampling(temperature, trainer.top_k, trainer.top_p, min_p, trainer.repetition_penalty)
    forbidden_ids = trainer.module.forbidden_token_ids(trainer.processing_class)
    common = {"eos_ids": trainer.eos_token_ids, "max_prompts": trainer.args.rollout_prompts}
    if trainer.serving is None:
        with whole_policy(trainer) as bare, merged_lora(bare), prepacked(bare):
            yield TransformersEngine(
                bare, trainer.module, trainer._tokenizer, sampling, forbidden_ids=forbidden_ids, **common
            )
        return
    with whole_policy(trainer) as bare:
        trainer.serving.sync(bare)
    grown, training = [], trainer.generation is not None and trainer.generation.phase is Phase.GROWING

    def keep(*grow) -> None:
        if training or not grown:
            grown.append(grow)

    try:
        yield RequestEngine(trainer.serving.requests, trainer._tokenizer, sampling, grown=keep, **common)
    finally:
        trainer.serving.requests.rest()
    # once for all trees, since all processes gather the weights together and may grow different numbers of times
    with whole_policy(trainer) as bare:
        if training:
            _keep_features(bare, trainer.module, grown)
        if grown:
            trainer.serving.check_once(bare, trainer.module, Sampler(sampling, forbidden_ids), *grown[0])


def _keep_features(model, module, grown: list) -> None:
    """Computes the features of a frozen tower, which the log-prob passes expect."""
    features = MediaFeatures(model, module)
    for prompts, trees, _ in grown:
        features.add(prompt for prompt in prompts if prompt is not None)
        features.add(node.media for tree in trees for node in tree.nodes if node.media is not None)
