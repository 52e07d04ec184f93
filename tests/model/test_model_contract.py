"""A row gives the same logits alone and in any batch: what rollout, old, reference and policy pass rely on."""

import numpy as np
import pytest
import torch
from PIL import Image


def picture(seed: int, width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def turn(text: str, images: int = 0) -> list[dict]:
    parts = [{"type": "image", "index": i} for i in range(images)]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def forward(module, model, prompts, extra_ids=()):
    """Logits of several prompts in one left-padded batch, explicit positions, each followed by `extra_ids`."""
    rows = [prompt.ids + list(extra_ids) for prompt in prompts]
    length = max(map(len, rows))
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    axes = prompts[0].position_ids.shape[:-1]
    positions = torch.zeros(*axes, len(rows), length, dtype=torch.long)
    for i, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        start = length - len(row)
        ids[i, start:] = torch.tensor(row)
        mask[i, start:] = 1
        after = torch.arange(len(extra_ids)) + prompt.next_position
        own = torch.cat([prompt.position_ids, after.expand(*axes, -1)], dim=-1)
        positions[..., i, start:] = own
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions, **module.batch_media(prompts))
    return [out.logits[i, length - len(row) :] for i, row in enumerate(rows)]


def rows(module):
    """Rows with 1, 3, 0 and 2 pictures of different sizes."""
    sizes = [[(100, 130)], [(84, 84), (56, 112), (140, 84)], [], [(112, 112), (60, 90)]]
    return [
        module.encode(turn(f"Question {i}?", len(row)), [picture(10 * i + j, *size) for j, size in enumerate(row)])
        for i, row in enumerate(sizes)
    ]


@pytest.fixture(scope="module")
def prompts(tiny_vlm):
    return rows(tiny_vlm[0])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 2], [2, 0]])
def test_a_mixed_batch_gives_each_row_its_own_logits(tiny_vlm, prompts, order):
    module, model, _ = tiny_vlm
    together = forward(module, model, [prompts[i] for i in order], extra_ids=[5, 6, 7])
    for i, logits in zip(order, together, strict=True):
        alone = forward(module, model, [prompts[i]], extra_ids=[5, 6, 7])[0]
        torch.testing.assert_close(logits, alone, atol=1e-4, rtol=0)


def test_a_text_row_has_no_picture_tokens_and_none_of_its_neighbours(tiny_vlm, prompts):
    module, model, _ = tiny_vlm
    text = prompts[2]
    assert text.media == {}
    assert text.media_key == ""
    assert module.config.image_token_id not in text.ids
    other = module.encode(turn("Question 0?", 1), [picture(99, 100, 130)])
    with_first = forward(module, model, [prompts[0], text])
    with_other = forward(module, model, [other, text])
    assert torch.equal(with_first[1], with_other[1])
    assert not torch.allclose(with_first[0][-1], with_other[0][-1], atol=1e-3), "the picture must matter to its own row"


def test_a_generation_in_between_leaves_no_trace(tiny_vlm, prompts):
    """The model object remembers the position offset of its last generate call; explicit positions ignore it."""
    module, model, _ = tiny_vlm
    model.model.rope_deltas = None
    fresh = forward(module, model, prompts[:2], extra_ids=[5, 6])
    third = prompts[3]
    model.generate(
        input_ids=torch.tensor([third.ids] * 3),
        attention_mask=torch.ones(3, len(third.ids), dtype=torch.long),
        mm_token_type_ids=(torch.tensor([third.ids] * 3) == module.config.image_token_id).int(),
        **module.batch_media([third] * 3),
        max_new_tokens=2,
    )
    assert model.model.rope_deltas is not None
    for before, after in zip(fresh, forward(module, model, prompts[:2], extra_ids=[5, 6]), strict=True):
        torch.testing.assert_close(before, after, atol=1e-5, rtol=0)


def test_positions_are_the_models_own(tiny_vlm, prompts):
    """Those of pictures; videos are in test_positions.py."""
    module, model, _ = tiny_vlm
    for prompt in prompts:
        ids = torch.tensor([prompt.ids])
        kinds = (ids == module.config.image_token_id).int() + 2 * (ids == module.config.video_token_id).int()
        grids = {key: value for key, value in prompt.media.items() if not key.startswith("pixel")}
        expected, _ = model.model.get_rope_index(ids, mm_token_type_ids=kinds, **grids)
        assert torch.equal(prompt.position_ids, expected[:, 0])
        assert prompt.position_ids.shape == (3, len(prompt.ids))
        assert prompt.next_position == int(expected.max()) + 1


def test_one_row_equals_the_librarys_own_path(tiny_vlm):
    """Ids, pixels and positions as the processor and the model would make them without us."""
    module, model, processor = tiny_vlm
    image = picture(3, 100, 130)
    prompt = module.encode(turn("Where?", 1), [image])
    text = processor.apply_chat_template(turn("Where?", 1), add_generation_prompt=True, tokenize=False)
    inputs = processor(text=[text], images=[image], return_tensors="pt")
    model.model.rope_deltas = None
    with torch.no_grad():
        expected = model(**inputs).logits[0]
    torch.testing.assert_close(forward(module, model, [prompt])[0], expected, atol=1e-4, rtol=0)


def test_a_text_model_keeps_its_rows_apart_too(tiny_text):
    module, model, _ = tiny_text
    prompts = [module.encode(turn(text)) for text in ("Short?", "A question that is a good deal longer than that one?")]
    assert prompts[0].position_ids.tolist() == list(range(len(prompts[0].ids)))
    assert prompts[0].next_position == len(prompts[0].ids)
    together = forward(module, model, prompts, extra_ids=[5, 6])
    for prompt, logits in zip(prompts, together, strict=True):
        alone = forward(module, model, [prompt], extra_ids=[5, 6])[0]
        torch.testing.assert_close(logits, alone, atol=1e-4, rtol=0)
