"""Grows rollout trees with a transformers model; no shared prefix is ever computed twice.

Each prompt is prefilled once (and its pictures encoded once), then all live rows of a batch append one token per step.
A finished row leaves at once. A row that forks is fed its last token once, its cache is copied, and its one row of
logits serves all children. There is no barrier: answers to one thought are sampled while other thoughts are still open.

A row that calls a tool leaves as well, and its keys and values are parked. When the result is collected, its
observation is fed in one pass together with others, and the row is live again. If a policy branches off at earlier
points, its trees stay parked until it has finished them. If it extends trees that have been scored, what is above their
forks stays parked until `extend`, so that a further answer costs its own tokens only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from trainer.engines.batch_forward import BatchForward, unforkable
from trainer.engines.calls import Calls
from trainer.engines.growth import Growth
from trainer.engines.live_rows import LiveRows
from trainer.engines.media_features import MediaFeatures
from trainer.engines.refed_forward import RefedForward
from trainer.engines.sampling import Sampler, Sampling
from trainer.engines.stop_strings import stop_matcher
from trainer.engines.tree_engine import TreeEngine
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch
from trainer.tree import PROMPT, Tree


class TransformersEngine(TreeEngine):
    """Grows trees with `model.forward` and a cache that forks; arguments that are not listed are those of `TreeEngine`.

    Args:
        model: the bare model (not wrapped by DDP or DeepSpeed), in eval mode; a PEFT model is fine.
        module: its VLMModule, for the media of prompts and observations.
        forbidden_ids: tokens that are never sampled.

    Attributes:
        stats: counts of the last `grow`: prompt_tokens, generated_tokens (sampled; shared ones count once),
            observation_tokens, recomputed_tokens (tokens fed to the model more than once: one for each branch after a
            node that only a call or a split follows, else 0), steps (forward passes after the prefill), calls, forks
            (splits and branches that the policy made in addition to the segments that follow a node).
    """

    counts = (
        "prompt_tokens",
        "generated_tokens",
        "observation_tokens",
        "recomputed_tokens",
        "steps",
        "calls",
        "forks",
    )

    def __init__(
        self,
        model,
        module,
        tokenizer,
        sampling: Sampling,
        eos_ids: list[int],
        forbidden_ids: list[int],
        max_prompts: int | None = None,
        max_calls: int = 16,
        progress: Callable[[int], None] | None = None,
    ):
        assert eos_ids and not set(eos_ids) & set(forbidden_ids), (eos_ids, forbidden_ids)
        # PEFT puts its layers into the base model, so calling it directly saves a wrapper at every step.
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.module, self.sampler = module, Sampler(sampling, forbidden_ids)
        super().__init__(tokenizer, sampling, eos_ids, max_prompts, max_calls, progress)

    @torch.no_grad()
    def grow(self, prompts: list, policy: Policy, prompt_ids: list[str]) -> list[Tree]:
        """One tree per prompt, in the order of the prompts.

        Args:
            prompts: EncodedPrompts; None for a prompt that could not be encoded: its tree is one `failed` node.
            policy: decides where to fork.
            prompt_ids: names of the trees.

        Draws from torch's default generator. The same seed gives the same trees, with tool calls too, since their
        results are collected at fixed steps (see `Calls`).
        """
        assert not self.model.training, (
            "rollouts need eval mode: in train mode dropout is active and the cache may be off"
        )
        return self._grow(prompts, policy, prompt_ids, MediaFeatures(self.model, self.module))

    @torch.no_grad()
    def extend(self, branches: list[tuple[Tree, Branch]]) -> None:
        """Samples below nodes of trees of the last `grow`, whose policy `extends` them; then what it kept is released.

        A branch starts from the kept keys, values and logits of its node, so nothing is computed twice. `stats` counts
        this call alone.
        """
        super().extend(branches)

    def _grow_together(
        self, numbers: list[int], prompts: list, trees: list[Tree], policy: Policy, media: MediaFeatures
    ) -> Growth:
        vocab_size = self.model.config.get_text_config().vocab_size
        matcher = partial(stop_matcher, self.tokenizer, vocab_size=vocab_size)
        rows = LiveRows(trees, policy.start(), self.eos_ids, matcher)
        kind = RefedForward if unforkable(self.model) else BatchForward
        forward = kind(self.model, media, prompts, self._pad_id())
        with Calls(self.max_calls, self.eos_ids[0]) as calls:
            growth = Growth(forward, rows, calls, self.sampler, policy, trees, self.stats, self.progress)
            growth.run()
        # Observations at the end of a tree were not fed here, but the log-prob passes contain them.
        media.add(node.media for tree in trees for node in tree.nodes if node.media is not None)
        self.stats["prompt_tokens"] += forward.prompt_tokens
        self.stats["recomputed_tokens"] += forward.fed_tokens - forward.prompt_tokens - sum(map(fed_once, trees))
        return growth

    def _pad_id(self) -> int:
        return self.eos_ids[0] if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id


def fed_once(tree: Tree) -> int:
    """Number of tokens below the prompt that must be fed to sample the tree: those before a sampled token."""
    fed, followed = 0, [False] * len(tree.nodes)
    for node, below in zip(reversed(tree.nodes), reversed(range(len(tree.nodes))), strict=True):
        fed += len(node.token_ids) if followed[below] else max(len(node.token_ids) - 1, 0) * node.sampled
        if node.parent != PROMPT:
            followed[node.parent] |= node.sampled or followed[below]
    return fed
