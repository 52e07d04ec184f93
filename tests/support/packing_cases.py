"""Small models, prompts and the dense reference that the packing tests share."""

import functools

import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

from model.positions import restarted_after_media
from model.qwen_module import Qwen2_5VLModule
from model.text_module import TextModule
from model.vlm_module import EncodedPrompt
from trainer.logprobs.packing import build_plans, packed_forward
from trainer.logprobs.tree_attention import use_tree_attention

IMAGE, VIDEO, START, END, VOCAB = 90, 91, 92, 93, 97
TEMPERATURE = 0.7


@functools.cache
def tiny_vlm():
    """(module, model in float32 and eval mode) of a random three-layer Qwen2.5-VL with grouped heads."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "vocab_size": VOCAB, "tie_word_embeddings": False, "initializer_range": 0.1}
    text |= {"bos_token_id": None, "eos_token_id": None}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64}
    vision |= {"fullatt_block_indexes": [1], "window_size": 56, "patch_size": 14, "initializer_range": 0.1}
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    use_tree_attention(model)
    add_fused_lm_head(model, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    return Qwen2_5VLModule(config), model


@functools.cache
def text_model(family=Qwen2ForCausalLM, config_class=Qwen2Config, heads=4, kv_heads=1):
    """(module, model in float32 and eval mode) of a random two-layer text model."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = config_class(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        initializer_range=0.1,
    )
    model = family(config).eval()
    use_tree_attention(model)
    add_fused_lm_head(model, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    return TextModule(config), model


def vlm_prompt(parts, seed=0):
    """A prompt from parts: ints are text tokens, ("image"|"video", (t, h, w)) are media of that grid of patches."""
    _, model = tiny_vlm()
    torch.manual_seed(seed)
    ids, media = [], {}
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            continue
        kind, grid = part
        names = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}
        patches = grid[0] * grid[1] * grid[2]
        ids += [START, *[IMAGE if kind == "image" else VIDEO] * (patches // 4), END]
        for key, value in zip(names[kind], (torch.randn(patches, 3 * 2 * 14 * 14), torch.tensor([grid])), strict=True):
            media[key] = torch.cat([media[key], value]) if key in media else value
    tensor = torch.tensor([ids])
    kinds = (tensor == IMAGE).int() + 2 * (tensor == VIDEO).int()
    grids = {name: media.get(name) for name in ("image_grid_thw", "video_grid_thw")}
    positions, _ = model.model.get_rope_index(tensor, mm_token_type_ids=kinds, **grids)
    positions = restarted_after_media(positions[:, 0], kinds[0])
    key = str([(name, value.sum().item()) for name, value in media.items()]) if media else ""
    return EncodedPrompt(ids, positions, int(positions.max()) + 1, media, media_key=key)


def text_prompt(ids):
    return EncodedPrompt(list(ids), torch.arange(len(ids)), len(ids))


def dense(model, prompts, row_prompt, completions):
    """One row a leaf, each alone, through ordinary logits and the model's own positions.

    Only behind a video are the positions stated: there Transformers' own are not those of the model's authors
    (model/positions.py).
    """
    width = max(map(len, completions))
    log_probs, entropies = [], []
    for p, completion in zip(row_prompt, completions, strict=True):
        ids = torch.tensor([[*prompts[p].ids, *completion]])
        kinds = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
        extra = {**prompts[p].media, "mm_token_type_ids": kinds} if prompts[p].position_ids.ndim == 2 else {}
        if "video_grid_thw" in extra:
            behind = prompts[p].next_position + torch.arange(len(completion)).expand(3, -1)
            extra["position_ids"] = torch.cat([prompts[p].position_ids, behind], dim=1)[:, None]
        logits = model(input_ids=ids, use_cache=False, **extra).logits / TEMPERATURE
        scores = logits[0, len(prompts[p].ids) - 1 : -1].log_softmax(-1)
        chosen = scores.gather(1, torch.tensor(completion, dtype=torch.long)[:, None])[:, 0]
        entropy = -(scores.exp() * scores).sum(-1)
        pad = (0, width - len(completion))
        log_probs.append(torch.nn.functional.pad(chosen, pad))
        entropies.append(torch.nn.functional.pad(entropy, pad))
    return torch.stack(log_probs), torch.stack(entropies)


def gradients(model, log_probs, entropies):
    """Gradients of a loss that weighs every token of every row differently."""
    torch.manual_seed(1)
    model.zero_grad()
    ((log_probs + 0.3 * entropies) * torch.randn_like(log_probs)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(got, wanted):
    assert got.keys() == wanted.keys() and wanted
    largest = max(g.abs().max() for g in wanted.values())
    assert largest > 0
    for name in wanted:
        assert (got[name] - wanted[name]).abs().max() <= 1e-5 * largest, name


def assert_packed_equals_dense(module, model, case, max_slots=None):
    wanted = dense(model, *case)
    wanted_gradients = gradients(model, *wanted)
    plans = build_plans(*case, max_slots=max_slots)
    got = packed_forward(model, module, plans)
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 5e-6
    assert_same_gradients(gradients(model, *got), wanted_gradients)
    return plans


# Two thoughts with two answers each; one is cut, one ends in the other's beginning.
TREE = [[5, 6, 7, 8], [5, 6, 7, 9, 3], [5, 4, 11], [5, 4, 12, 13, 14, 15]]
PICTURE, WIDE = ("image", (1, 4, 6)), ("image", (1, 2, 8))


def build_plan(prompts, row_prompt, completions, width=None):
    """The plan of a micro-batch that is not cut."""
    (plan,) = build_plans(prompts, row_prompt, completions, width=width)
    return plan


def one_prompt_case(prompt):
    return [prompt], [0] * len(TREE), TREE


def mixed_case():
    """Text, picture, video and two pictures in one micro-batch, rows of the prompts interleaved."""
    kinds = ([1, 2, 3], [1, PICTURE, 2], [1, ("video", (2, 4, 4)), 2], [1, WIDE, 2, PICTURE, 3])
    prompts = [vlm_prompt(parts, seed) for seed, parts in enumerate(kinds)]
    row_prompt = [p for _ in TREE for p in range(len(prompts))]
    return prompts, row_prompt, [row for row in TREE for _ in prompts]
