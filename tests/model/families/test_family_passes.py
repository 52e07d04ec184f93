"""Each family's small random model: a forked tree and a packed pass have the values of plain rows, in float32."""

import copy
import functools
import re
import warnings

import pytest
import torch
from engine_cases import assert_dense, assert_sound, engine, grow
from family_cases import FAMILIES, built
from family_runs import NAMES, THOUGHT_END, prompts_of
from packing_cases import assert_same_gradients, gradients
from picture_cases import noise
from trl.trainer.utils import add_fused_lm_head

from model.vlm_module import TOWERS
from task.errors import UserError
from trainer.logprobs.dummy_media import dummy_prompt
from trainer.logprobs.forward import RowForward
from trainer.policies.thought_answer import ThoughtAnswerPolicy
from trainer.rollout import Rollout

family = pytest.mark.parametrize("name", NAMES)


class Clip(list):
    """Frames, sampled more densely than any family's processor would sample them."""

    fps = 8.0


@functools.cache
def grown(name: str):
    """(prompts, trees) of a text, one picture and two pictures: two thoughts with two answers each."""
    module = built(name)[0]
    prompts = prompts_of(module)
    return prompts, grow(engine(built(name)), prompts, ThoughtAnswerPolicy(2, 2, 12, 5, THOUGHT_END))


@family
def test_a_prompt_is_what_the_library_makes_of_it(name):
    """Ids and logits of two pictures equal those of the family's own processor and forward, which has no positions."""
    module, model, processor = built(name)
    images = [noise(0, 60, 90), noise(1, 130, 40)]
    parts = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}, {"type": "text", "text": "?"}]
    given = [{**part, "index": place // 2} if part["type"] == "image" else part for place, part in enumerate(parts)]
    prompt = module.encode([{"role": "user", "content": given}], images)
    text = processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
    bos = processor.tokenizer.bos_token
    once = {"add_special_tokens": False} if bos and text.startswith(bos) else {}
    whole = processor(text=[text], images=images, return_tensors="pt", **once)
    assert prompt.ids == whole["input_ids"][0].tolist()
    names = module._input_names | {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}
    ids = torch.tensor([prompt.ids])
    with torch.no_grad():
        wanted = model(**{key: values for key, values in whole.items() if key in names}).logits
        media = module.batch_media([prompt]) | module.token_types(ids)
        got = model(input_ids=ids, position_ids=prompt.position_ids.unsqueeze(-2), **media).logits
        other = module.encode([{"role": "user", "content": given}], [images[0], noise(2, 130, 40)])
        media |= module.batch_media([other])
        changed = model(input_ids=ids, position_ids=prompt.position_ids.unsqueeze(-2), **media).logits
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
    assert (changed[:, -1] - got[:, -1]).abs().max() > 1e-3, "the second picture makes no difference"


@family
def test_every_leaf_of_a_forked_tree_has_the_log_probs_of_a_row_of_its_own(name, record_property):
    module, _, processor = built(name)
    assert any(len(tree.leaves()) == 4 for tree in grown(name)[1]), "no tree has all its answers"
    gaps = []
    for prompt, tree in zip(*grown(name), strict=True):
        assert_sound(tree, module.eos_token_ids(processor))
        gaps.append(assert_dense(built(name), prompt, tree))
    record_property("gap", max(gaps))


@pytest.mark.parametrize("name", [param for param in NAMES if FAMILIES[param.values[0]].video])
def test_a_tree_on_a_video_has_the_log_probs_of_plain_rows(name, record_property):
    """All frames are seen, although some processors would sample from them again; a text is beside the clip."""
    module, model, processor = built(name)
    turn = [{"role": "user", "content": [{"type": "video", "index": 0}, {"type": "text", "text": "What moves?"}]}]
    clips = [Clip(noise(seed + frame, 84, 56) for frame in range(6)) for seed in (0, 10)]
    prompt, other = (module.encode(turn, videos=[clip]) for clip in clips)
    whole = processor(
        text=[module.render(turn)],
        videos=[clips[0]],
        video_metadata=[{"total_num_frames": 6, "fps": Clip.fps, "frames_indices": list(range(6))}],
        do_sample_frames=False,
        return_tensors="pt",
    )
    assert prompt.ids == whole["input_ids"][0].tolist()
    prompts = [prompt, prompts_of(module)[0]]
    trees = grow(engine(built(name)), prompts, ThoughtAnswerPolicy(2, 2, 8, 4, THOUGHT_END))
    record_property("gap", max(assert_dense(built(name), *pair) for pair in zip(prompts, trees, strict=True)))
    ids, positions = torch.tensor([prompt.ids]), prompt.position_ids.unsqueeze(-2)
    with torch.no_grad():
        one, two = (
            model(input_ids=ids, position_ids=positions, **module.batch_media([shown])).logits
            for shown in (prompt, other)
        )
    assert (one[:, -1] - two[:, -1]).abs().max() > 1e-3, "another clip makes no difference"


@family
def test_targets_of_lora_lie_in_the_language_model_or_in_all_of_the_model(name, record_property):
    module, model, _ = built(name)
    linears = [key for key, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    own, all_ = (
        [key for key in linears if re.fullmatch(module.lora_target_modules(model, vision=vision), key)]
        for vision in (False, True)
    )
    towers = {tower: [key for key in linears if module.tower_of(f"{key}.") == tower] for tower in TOWERS}
    assert own and own == [key for key in towers["language"] if "lm_head" not in key]
    assert set(all_) == set(linears) - {key for key in linears if "lm_head" in key}
    assert not any(re.fullmatch(module.vision_modules, key) for key in towers["language"])
    assert all(re.fullmatch(module.vision_modules, key) for key in (*towers["vision"], *towers["merger"]))
    record_property("targets", ", ".join(sorted({key.rsplit(".", 1)[-1] for key in own})))


@family
def test_features_that_are_computed_once_change_no_value(name):
    """Those of a frozen tower, given in place of the pixels."""
    module, model, _ = built(name)
    prompts = [copy.copy(prompt) for prompt in grown(name)[0] if prompt.media]
    frozen = copy.deepcopy(model).requires_grad_(False)
    assert module.has_fixed_features(frozen)
    known = {}
    for prompt in prompts:
        ids, positions = torch.tensor([prompt.ids]), prompt.position_ids.unsqueeze(-2)
        with torch.no_grad():
            wanted = model(input_ids=ids, position_ids=positions, **module.batch_media([prompt])).logits
            prompt.features = module.media_features(frozen, prompt, known)
            got = model(input_ids=ids, position_ids=positions, **module.batch_media([prompt])).logits
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
    assert len(module.batch_media(prompts)["mm_encoder_outputs"]) == 1


def row_tensors(rollout, pad: int):
    """(B, P + T) ids and mask as TRL pads them, prompts on the left and completions on the right, and T."""
    rows = range(len(rollout.row_tree))
    prompts = [rollout.prompts[rollout.row_tree[row]].ids for row in rows]
    completions = [rollout.completion(row) for row in rows]
    longest, width = max(map(len, prompts)), max(map(len, completions))
    ids = [
        [pad] * (longest - len(before)) + before + after + [pad] * (width - len(after))
        for before, after in zip(prompts, completions, strict=True)
    ]
    mask = [
        [0] * (longest - len(before)) + [1] * (len(before) + len(after)) + [0] * (width - len(after))
        for before, after in zip(prompts, completions, strict=True)
    ]
    return torch.tensor(ids), torch.tensor(mask), width


@pytest.mark.slow
@family
def test_a_dummy_picture_keeps_processes_in_step_and_changes_nothing(name):
    """A process whose rows are text computes a picture where others have some; its tower gets no gradient."""
    module, model, processor = built(name)
    model = copy.deepcopy(model)
    rollout = Rollout.from_trees(grown(name)[0][:1], copy.deepcopy(grown(name)[1][:1]), 4, 0)
    ids, mask, width = row_tensors(rollout, processor.tokenizer.pad_token_id)
    found = []
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    for processes in (1, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forward = RowForward(module, model, "auto", None, processes=processes)
        forward.start(rollout)
        forward._dummies = {"pixel_values": dummy_prompt(module, "pixel_values")} if processes > 1 else {}
        model.zero_grad()
        log_probs, _ = forward(model, model, [0, 1, 2, 3], ids, mask, width)
        log_probs.sum().backward()
        found.append(log_probs.detach())
    torch.testing.assert_close(found[1], found[0], atol=5e-6, rtol=0)
    tower = [weight.grad for key, weight in model.named_parameters() if module.tower_of(key) == "vision"]
    assert any(grad is not None for grad in tower), "the tower was not computed"
    assert all(grad is None or not grad.any() for grad in tower)


@family
def test_packed_rows_have_the_log_probs_and_gradients_of_dense_ones(name, record_property):
    """Dense rows have the sampled log-probs but for forbidden tokens; where packing is not exact, it is refused."""
    module, model, processor = built(name)
    model = copy.deepcopy(model)
    prompts, trees = grown(name)
    rollout = Rollout.from_trees(prompts, copy.deepcopy(trees), 4, module.eos_token_ids(processor)[0])
    ids, mask, width = row_tensors(rollout, processor.tokenizer.pad_token_id)
    rows = list(range(len(ids)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forward = RowForward(module, model, "auto", None)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    forward.start(rollout)
    wanted = forward.dense(model, rows, ids, mask, width)
    sampled = torch.tensor([row + [0.0] * (width - len(row)) for row in map(rollout.logprobs, rows)])
    gap = (sampled - wanted[0])[mask[:, -width:].bool()]  # the sampler leaves forbidden tokens out
    assert gap.min() >= -1e-5 and gap.max() < 0.1
    assert forward.sharing == FAMILIES[name].packed
    if not forward.sharing:
        with pytest.raises(UserError, match="packed training is exact for full attention only"):
            RowForward(module, model, "on", None)
        record_property("layout", "one row per leaf")
        return
    wanted_gradients = gradients(model, *wanted)
    got = forward(model, model, rows, ids, mask, width)
    gaps = [(one - other).abs().max().item() for one, other in zip(got, wanted, strict=True)]
    assert max(gaps) <= 5e-6
    assert_same_gradients(gradients(model, *got), wanted_gradients)
    record_property("gap", gaps[0])
