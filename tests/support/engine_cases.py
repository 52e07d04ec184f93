"""What the engine's tests share: engines and prompts of a fixture, and a dense pass over a tree's leaves."""

import numpy as np
import torch
from PIL import Image
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.tree import PROMPT

NAME = {"engine": "own"}  # which engine the tests run on: own, or vllm (`pytest --engine vllm`)


def engine(setup, sampling=None, **options):
    """The engine under test, with the weights of the setup's model."""
    module, model, processor = setup
    if NAME["engine"] == "vllm":
        from vllm_cases import vllm_engine

        return vllm_engine(setup, sampling or Sampling(), **options)
    forbidden, eos = module.forbidden_token_ids(processor), module.eos_token_ids(processor)
    return TransformersEngine(model, module, module.tokenizer, sampling or Sampling(), eos, forbidden, **options)


def encode(module, text: str, *sizes: tuple[int, int]):
    """A prompt with one noise picture of each size (width, height)."""
    pixels = np.random.default_rng(len(text))
    images = [Image.fromarray(pixels.integers(0, 255, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
    parts = [{"type": "image", "index": i} for i in range(len(images))]
    return module.encode([{"role": "user", "content": [*parts, {"type": "text", "text": text}]}], images)


def grow(engine, prompts, policy, seed=0):
    torch.manual_seed(seed)
    return engine.grow(prompts, policy, [str(i) for i in range(len(prompts))])


def _positions(prompt, nodes) -> torch.Tensor:
    """Of the prompt and the nodes: a picture brings its own, everything else goes on by one."""
    pieces, start = [prompt.position_ids], prompt.next_position
    for node in nodes:
        own = torch.arange(len(node.token_ids)) if node.media is None else node.media.position_ids
        pieces.append((own + start).expand(*prompt.position_ids.shape[:-1], -1))
        start += len(node.token_ids) if node.media is None else node.media.next_position
    return torch.cat(pieces, -1)


@torch.no_grad()
def dense_scores(setup, prompt, tree, temperature=None) -> list[torch.Tensor]:
    """(tokens, V) log-probabilities of every node on every leaf's path, from one unshared, right-padded pass.

    Forbidden ids are left out. `temperature(node)` is what the node was sampled at, by default 1.
    """
    module, model, processor = setup
    paths = [[tree.nodes[i] for i in tree.path(leaf)] for leaf in tree.leaves()]
    rows = [prompt.ids + [token for node in path for token in node.token_ids] for path in paths]
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    positions = [_positions(prompt, path) for path in paths]
    positions = torch.stack([torch.nn.functional.pad(p, (0, length - p.shape[-1])) for p in positions], dim=-2)
    media = [shown for path in paths for shown in (prompt, *(node.media for node in path)) if shown is not None]
    mask = torch.arange(length) < torch.tensor([len(row) for row in rows])[:, None]
    inputs = module.batch_media(media) | module.token_types(ids)
    logits = model(input_ids=ids, position_ids=positions, attention_mask=mask, **inputs).logits
    logits[..., module.forbidden_token_ids(processor)] = -torch.inf
    wanted = []
    for row, path in zip(logits, paths, strict=True):
        depth = len(prompt.ids)
        for node in path:
            scores = row[depth - 1 : depth - 1 + len(node.token_ids)] / (temperature(node) if temperature else 1)
            wanted.append(scores.log_softmax(-1))
            depth += len(node.token_ids)
    return wanted


def path_nodes(tree) -> list:
    """The nodes of every leaf's path, one path after another; a shared node comes once per leaf."""
    return [tree.nodes[i] for leaf in tree.leaves() for i in tree.path(leaf)]


def dense(setup, prompt, tree, temperature=None) -> list[torch.Tensor]:
    """(tokens,) log-probabilities of each of `path_nodes`' own tokens."""
    pairs = zip(dense_scores(setup, prompt, tree, temperature), path_nodes(tree), strict=True)
    return [scores.gather(1, torch.tensor(node.token_ids)[:, None])[:, 0] for scores, node in pairs]


def assert_nothing_recomputed(engine):
    """Tokens that rows share were computed once; on vLLM, as far as they fill blocks of its cache."""
    if NAME["engine"] == "vllm":
        assert engine.stats["cached_tokens"] >= engine.stats["reusable_tokens"]
        assert engine.stats["recomputed_tokens"] < engine.stats["requests"] * engine.requests.block_size
    else:
        assert engine.stats["recomputed_tokens"] == 0


def assert_dense(setup, prompt, tree, atol=1e-4, temperature=None) -> float:
    """Every sampled node of every leaf's path has the log-probabilities of a pass from scratch; the largest gap."""
    largest = 0.0
    for node, wanted in zip(path_nodes(tree), dense(setup, prompt, tree, temperature), strict=True):
        if node.sampled:
            torch.testing.assert_close(torch.tensor(node.logprobs), wanted, atol=atol, rtol=0)
            largest = max(largest, (torch.tensor(node.logprobs) - wanted).abs().max().item())
    return largest


def assert_dense_entropies(setup, prompt, tree, atol=1e-4) -> float:
    """Every sampled node of every leaf's path has the entropies of a pass from scratch; the largest gap."""
    largest = 0.0
    for node, scores in zip(path_nodes(tree), dense_scores(setup, prompt, tree), strict=True):
        if node.sampled:
            found, wanted = torch.tensor(node.entropies), torch.special.entr(scores.exp()).sum(-1)
            torch.testing.assert_close(found, wanted, atol=atol, rtol=0)
            largest = max(largest, (found - wanted).abs().max().item())
    return largest


def assert_sound(tree, eos_ids):
    """What holds for every grown tree, whatever its policy."""
    leaves = set(tree.leaves())
    for index, node in enumerate(tree.nodes):
        assert PROMPT <= node.parent < index
        assert node.token_ids
        if node.sampled:
            assert len(node.logprobs) == len(node.entropies) == len(node.token_ids)
            assert not set(node.token_ids[:-1]) & set(eos_ids)
        else:
            assert not node.logprobs
        if node.parent != PROMPT:
            assert node.group == tree.nodes[node.parent].group
        assert node.status != "failed" or index in leaves


def small_model(vocab_size: int, family: str, attention: str):
    """Random weights: `llama`, or `sliding` with a window of nine tokens in half of the layers."""
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "initializer_range": 0.2,
        "attn_implementation": attention,
    }
    torch.manual_seed(1)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    window = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, **window)).eval()
