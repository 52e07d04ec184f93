"""Qwen2.5-VL's module: what a prompt becomes, which ids are forbidden, which weights belong to which tower."""

import copy
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from model.registry import module_for


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def turn(*parts) -> list[dict]:
    return [{"role": "user", "content": list(parts)}]


def image(index: int = 0) -> dict:
    return {"type": "image", "index": index}


def text(words: str) -> dict:
    return {"type": "text", "text": words}


@pytest.fixture
def budgeted(tiny_model_dir):
    """A module of its own, so that pixel limits can be changed."""

    def make(**limits):
        module = module_for(tiny_model_dir)
        module.load_processor(str(tiny_model_dir), **limits)
        return module

    return make


def test_sizes_come_from_the_actual_grid(budgeted):
    prompt = budgeted(max_pixels=401408).encode(turn(image(), text("Where?")), [picture(4000, 3000)])
    assert prompt.image_sizes == [(4000, 3000)]
    assert prompt.processed_sizes == [(728, 532)]
    assert prompt.media["image_grid_thw"].tolist() == [[1, 38, 52]]


def test_a_prompt_is_never_cut(budgeted):
    module = budgeted()
    module.tokenizer.model_max_length = 256
    prompt = module.encode(turn(image(), text("Where?")), [picture(640, 480)])
    assert prompt.ids.count(module.config.image_token_id) == 391


def test_a_prompt_that_something_else_cut_is_refused(budgeted):
    """Keeping only the end would lose the picture without an error while the loss still falls."""
    module = budgeted()
    whole = module.processor

    class KeepsTheEnd:
        def __getattr__(self, name):
            return getattr(whole, name)

        def __call__(self, **kwargs):
            encoded = whole(**kwargs)
            encoded["input_ids"] = encoded["input_ids"][:, -8:]
            return encoded

    module.processor = KeepsTheEnd()
    with pytest.raises(ValueError, match="the prompt has 0 image placeholder tokens for 391 image"):
        module.encode(turn(image(), text("Where?")), [picture(640, 480)])


def test_string_and_typed_content_give_the_same_ids(tiny_vlm):
    module = tiny_vlm[0]
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    typed = [{"role": turn["role"], "content": [text(turn["content"])]} for turn in plain]
    assert module.encode(plain).ids == module.encode(typed).ids


def test_the_prompt_ends_with_the_turn_header_and_has_one_system_turn(tiny_vlm):
    module = tiny_vlm[0]
    default = module.render(turn(text("How many?")))
    own = module.render([{"role": "system", "content": "Be brief."}, *turn(text("How many?"))])
    for rendered in (default, own):
        assert rendered.endswith("<|im_start|>assistant\n")
        assert rendered.count("<|im_start|>system") == 1
        assert "How many?" in rendered
    assert "You are a helpful assistant." in default
    assert "You are a helpful assistant." not in own


def test_a_text_part_with_an_empty_image_key_stays_text(tiny_vlm):
    """Arrow adds such keys; the template would render a second picture and lose the question."""
    module = tiny_vlm[0]
    parts = [{"type": "image", "index": 0, "text": None}, {"type": "text", "text": "Where?", "image": None}]
    rendered = module.render(turn(*parts))
    assert rendered.count("<|image_pad|>") == 1
    assert "Where?" in rendered


def test_pictures_follow_the_turns_order(tiny_vlm):
    module = tiny_vlm[0]
    small, large = picture(56, 56), picture(84, 112)
    prompt = module.encode(turn(image(1), text("and"), image(0)), [small, large])
    assert prompt.image_sizes == [(84, 112), (56, 56)]
    assert prompt.media["image_grid_thw"].tolist() == [[1, 8, 6], [1, 4, 4]]
    assert prompt.media_key == module.encode(turn(image(0), image(1), text("x")), [large, small]).media_key
    assert prompt.media_key != module.encode(turn(image(0), image(1), text("x")), [small, large]).media_key


@pytest.mark.parametrize(
    ("parts", "images"), [([image(0)], 0), ([], 1), ([image(0)], 2), ([image(0), image(0)], 1), ([image(1)], 1)]
)
def test_media_and_turns_must_agree(tiny_vlm, parts, images):
    with pytest.raises(ValueError, match=f"name images .* but there are {images} images"):
        tiny_vlm[0].encode(turn(*parts, text("Where?")), [picture(56, 56)] * images)


def test_a_media_token_in_the_question_is_refused(tiny_vlm):
    with pytest.raises(ValueError, match=r"user turn contains <\|image_pad\|>"):
        tiny_vlm[0].encode(turn(image(), text("What does <|image_pad|> mean?")), [picture(56, 56)])


def test_a_sampled_placeholder_is_reported_by_row(tiny_vlm):
    module = tiny_vlm[0]
    prompt = module.encode(turn(image(), text("Where?")), [picture(56, 84)])
    module.check_media(prompt.ids, prompt.media, "record 'a'")
    with pytest.raises(ValueError, match=r"record 'a', completion 3 has 7 image placeholder tokens for 6"):
        module.check_media([*prompt.ids, module.config.image_token_id], prompt.media, "record 'a', completion 3")


def test_forbidden_ids_hold_media_and_textless_ids_but_no_end(tiny_vlm):
    module, model, processor = tiny_vlm
    forbidden = set(module.forbidden_token_ids(processor))
    vocabulary = processor.tokenizer.get_vocab()
    for token in ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|vision_pad|>"):
        assert vocabulary[token] in forbidden
    ends = module.eos_token_ids(processor)
    assert ends == sorted([vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]])
    assert not forbidden & set(ends), "<|endoftext|> is padding and an end: it stays allowed"
    assert set(range(len(processor.tokenizer), model.config.text_config.vocab_size)) <= forbidden
    assert forbidden < set(range(model.config.text_config.vocab_size))


def test_a_video_is_positioned_by_its_rate(tiny_vlm):
    class Clip(list):
        fps = 4.0

    module = tiny_vlm[0]
    frames = [picture(84, 56, seed) for seed in range(5)]
    message = turn({"type": "video", "index": 0}, text("What moves?"))
    prompt = module.encode(message, videos=[Clip(frames)])
    assert prompt.media["video_grid_thw"].tolist() == [[3, 4, 6]], "an odd frame count is made even"
    assert prompt.ids.count(module.config.video_token_id) == 18
    assert prompt.media["second_per_grid_ts"].tolist() == [0.5]
    assert module.encode(message, videos=[frames]).media["second_per_grid_ts"].tolist() == [1.0]
    assert prompt.image_sizes == prompt.processed_sizes == [(84, 56)]


def test_media_of_several_prompts_are_concatenated_in_order(tiny_vlm):
    module = tiny_vlm[0]
    a = module.encode(turn(image(), text("a")), [picture(56, 84)])
    b = module.encode(turn(image(), text("b")), [picture(84, 84)])
    words = module.encode(turn(text("c")))
    batch = module.batch_media([b, words, a])
    assert batch["image_grid_thw"].tolist() == [[1, 6, 6], [1, 6, 4]]
    assert torch.equal(batch["pixel_values"], torch.cat([b.media["pixel_values"], a.media["pixel_values"]]))
    assert module.batch_media([words]) == {}


def test_pixel_limits_are_saved_and_reload(budgeted, tmp_path):
    first = budgeted(min_pixels=28 * 28 * 4, max_pixels=28 * 28 * 9)
    first.processor.save_pretrained(tmp_path)
    again = module_for(first.config)
    processor = again.load_processor(str(tmp_path))
    message, pixels = turn(image(), text("Where?")), picture(300, 200)
    assert again.encode(message, [pixels]).ids == first.encode(message, [pixels]).ids
    assert again.encode(message, [pixels]).processed_sizes == [(84, 56)]
    for part in (processor.image_processor, processor.video_processor):
        assert (part.size["shortest_edge"], part.size["longest_edge"]) == (3136, 7056)
    assert processor.tokenizer.padding_side == "left"


def test_limits_win_over_those_of_an_older_processor_file(tiny_model_dir, tmp_path):
    """Qwen2.5-VL's own checkpoints state min_pixels and max_pixels in preprocessor_config.json."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_text((tiny_model_dir / name).read_text())
    stated = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
    kinds = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated | kinds))
    for folder, limits, expected in ((tmp_path, {"max_pixels": 7056}, (84, 56)), (tmp_path / "saved", {}, (84, 56))):
        module = module_for(tiny_model_dir)
        module.load_processor(str(folder), **limits).save_pretrained(tmp_path / "saved")
        assert module.encode(turn(image(), text("x")), [picture(300, 200)]).processed_sizes == [expected]
    stock = module_for(tiny_model_dir)
    assert stock.load_processor(str(tmp_path)).image_processor.size["longest_edge"] == 12845056


@pytest.mark.parametrize("limits", [{"min_pixels": 9000, "max_pixels": 8000}, {"max_pixels": 700}, {"min_pixels": 0}])
def test_impossible_pixel_limits_are_refused(budgeted, limits):
    with pytest.raises(ValueError, match=r"min_pixels=\d+ and max_pixels=\d+: need 0 < min_pixels"):
        budgeted(**limits)


def test_lora_finds_the_language_model_only(tiny_vlm):
    module, model, _ = tiny_vlm
    names = [name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    own = [name for name in names if re.fullmatch(module.lora_target_modules(model), name)]
    assert len(own) == 7 * model.config.text_config.num_hidden_layers
    assert all("language_model.layers." in name for name in own)
    both = [name for name in names if re.fullmatch(module.lora_target_modules(model, vision=True), name)]
    assert {module.tower_of(name + ".weight") for name in both} == {"language", "merger", "vision"}
    assert not any("lm_head" in name for name in both)
    assert len(both) == 7 * model.config.text_config.num_hidden_layers + 5 * model.config.vision_config.depth + 2


@pytest.mark.parametrize(("vision", "freeze"), [(False, True), (True, True), (True, False), (False, False)])
def test_a_step_moves_what_is_trainable_and_nothing_else(tiny_vlm, vision, freeze):
    from peft import LoraConfig, get_peft_model

    from model.loading import trainable_report

    module, base, _ = tiny_vlm
    targets = module.lora_target_modules(base, vision=vision)
    config = LoraConfig(r=2, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM")
    model = get_peft_model(copy.deepcopy(base), config)
    module.freeze(model, freeze_vision=freeze)
    report = trainable_report(model, module)
    assert report["language"][0] > 0
    assert (report["vision"][0] > 0) == (report["merger"][0] > 0) == (vision and not freeze)

    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    prompt = module.encode(turn(image(), text("Where is it?")), [picture(84, 56)])
    ids = torch.tensor([prompt.ids])
    out = model(input_ids=ids, position_ids=prompt.position_ids[:, None], labels=ids, **prompt.media)
    out.loss.backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0).step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad, name


def test_full_training_can_leave_the_vision_tower_out(tiny_vlm):
    from model.loading import trainable_report

    module, base, _ = tiny_vlm
    model = copy.deepcopy(base)
    everything = trainable_report(model, module)
    assert all(trainable == total > 0 for trainable, total in everything.values())
    module.freeze(model, freeze_vision=True)
    frozen = trainable_report(model, module)
    assert frozen["vision"][0] == frozen["merger"][0] == 0
    assert frozen["language"] == everything["language"]


def test_the_dtype_is_the_one_that_was_asked_for(tiny_vlm, tiny_model_dir):
    module = tiny_vlm[0]
    for dtype in ("float32", "bfloat16"):
        assert module.load_model(str(tiny_model_dir), dtype=dtype).dtype == getattr(torch, dtype)
    with pytest.raises(ValueError, match="dtype 'fp8' is not one of auto, bfloat16"):
        module.load_model(str(tiny_model_dir), dtype="fp8")


def test_attention_may_differ_between_the_towers(tiny_vlm, tiny_model_dir):
    chosen = {"text_config": "eager", "vision_config": "sdpa"}
    model = tiny_vlm[0].load_model(str(tiny_model_dir), dtype="float32", attn_implementation=chosen)
    assert model.config.text_config._attn_implementation == "eager"
    assert model.config.vision_config._attn_implementation == "sdpa"


def test_a_checkpoint_that_lacks_weights_is_refused(tiny_vlm, tiny_model_dir, tmp_path):
    from safetensors.torch import load_file, save_file

    weights = load_file(tiny_model_dir / "model.safetensors")
    lost = next(name for name in weights if name.endswith("layers.0.mlp.up_proj.weight"))
    del weights[lost]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((tiny_model_dir / "config.json").read_text())
    with pytest.raises(ValueError, match=r"1 weights of .* are not in the checkpoint \(first: .*up_proj"):
        tiny_vlm[0].load_model(str(tmp_path), dtype="float32")
