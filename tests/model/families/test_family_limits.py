"""Pixel limits in the terms of each family's processor, saved with it, and how pictures are batched."""

import pytest
import torch
from family_cases import FAMILIES, built
from picture_cases import noise

from model.media_layouts import joined
from model.pixel_limits import limit_pixels, size_of_pictures
from task.errors import UserError

# max_pixels -> how the start-up table describes what it becomes.
LIMITED = {
    "qwen3_vl": (4096, "scaled to 1,024 to 4,096 pixels"),
    "glm4v": (3136, "scaled to 1,568 to 3,136 pixels"),
    "internvl": (2 * 28 * 28, "cut into 1 to 2 tiles of 28 x 28 pixels"),
    "aya_vision": (56 * 56, "cut into 1 to 1 tiles of 56 x 56 pixels"),
    "idefics3": (70 * 70, "scaled to a longest edge of 64 pixels"),
    "mistral3": (70 * 70, "scaled to a longest edge of 70 pixels"),
    "lfm2_vl": (4 * 28 * 28, "scaled to 1 to 4 tokens, larger ones cut into at most 1 tiles of 56 x 56 pixels"),
}


@pytest.mark.parametrize("name", LIMITED)
def test_fewer_pixels_make_fewer_placeholders_and_are_saved(name, tmp_path):
    pixels, described = LIMITED[name]
    module = type(built(name)[0])(built(name)[0].config)
    _, processor = FAMILIES[name].build()
    processor.save_pretrained(tmp_path)
    turn = [{"role": "user", "content": [{"type": "image", "index": 0}, {"type": "text", "text": "?"}]}]
    counts = []
    for limits in ({}, {"max_pixels": pixels}, {}):
        processor = module.load_processor(str(tmp_path), **limits)
        processor.save_pretrained(tmp_path)
        counts.append(module.encode(turn, [noise(0, 300, 200)]).ids.count(module.placeholders["image"]))
    assert counts[0] > counts[1] == counts[2] > 0
    assert size_of_pictures(processor.image_processor) == described


@pytest.mark.parametrize(
    ("name", "limits", "sentence"),
    [
        ("gemma3", {"max_pixels": 10_000}, "max_pixels is set, but Gemma3ImageProcessor has no such limit"),
        ("llava_onevision", {"max_pixels": 10_000}, "max_pixels is set, but LlavaOnevisionImageProcessor has no such"),
        ("internvl", {"min_pixels": 10}, "min_pixels is set, but GotOcr2ImageProcessor has no such limit"),
        ("internvl", {"max_pixels": 10}, r"max_pixels=10 is less than one tile of the model \(784 pixels\)"),
        ("qwen3_vl", {"min_pixels": 9000, "max_pixels": 8000}, "need 0 < min_pixels <= max_pixels"),
        ("lfm2_vl", {"max_pixels": 100}, "max_pixels of at least 784"),
    ],
)
def test_a_limit_that_cannot_be_met_is_refused(name, limits, sentence):
    with pytest.raises(UserError, match=sentence):
        limit_pixels(FAMILIES[name].build()[1].image_processor, **{"min_pixels": None, "max_pixels": None, **limits})


def test_pictures_of_different_sizes_are_padded_where_sizes_or_masks_tell():
    tall, wide = torch.ones(1, 3, 4, 2), torch.ones(2, 3, 2, 6)
    both = joined([{"pixel_values": tall}, {}, {"pixel_values": wide}])["pixel_values"]
    assert both.shape == (3, 3, 4, 6)
    assert torch.equal(both[:1, :, :, :2], tall) and torch.equal(both[1:, :, :2], wide)
    assert both.sum() == tall.sum() + wide.sum()


def test_videos_of_different_lengths_are_refused_where_nothing_tells_their_frames():
    """A frozen tower encodes each by itself, and then they share a batch."""
    module, model, _ = built("llava_onevision")
    turn = [{"role": "user", "content": [{"type": "video", "index": 0}]}]
    prompts = [module.encode(turn, videos=[[noise(0, 30, 30)] * frames]) for frames in (4, 6)]
    with pytest.raises(UserError, match="videos of 4, 6 frames are in one batch, and llava_onevision takes"):
        module.batch_media(prompts)
    assert module.batch_media(prompts[:1])["pixel_values_videos"].shape[1] == 4
    with torch.no_grad():
        for prompt in prompts:
            prompt.features = module.media_features(model, prompt, {})
    features = module.batch_media(prompts)["mm_encoder_outputs"]["video"].pooler_output
    assert features.shape[:-1] == (1, sum(prompt.ids.count(module.placeholders["video"]) for prompt in prompts))
