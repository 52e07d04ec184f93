"""Positions of text after a video, against the rule of the models' authors."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from model.positions import RESTARTED, restarted_after_media

TEXT, IMAGE, VIDEO = 7, 8, 9


class Clip(list):
    """Frames of 56x56 pixels, 2x2 cells of the tiny model's grid, that cover `seconds`."""

    def __init__(self, frames: int, seconds: float):
        super().__init__(Image.new("RGB", (56, 56), (9 * i, 0, 0)) for i in range(frames))
        self.fps = frames / seconds


def asked(module, *clips):
    parts = [{"type": "video", "index": i} for i in range(len(clips))]
    return module.encode([{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}], videos=clips)


def test_text_after_a_long_video_starts_one_past_its_last_time(tiny_vlm):
    """transformers 5.24 puts the question at 17, inside the video, and the first sampled token at 366."""
    module = tiny_vlm[0]
    prompt = asked(module, Clip(16, seconds=100.0))
    ids = torch.tensor(prompt.ids)
    video = ids == module.config.video_token_id
    time, height, width = prompt.position_ids[:, video]
    assert time.unique().tolist() == list(range(15, 366, 50))
    assert (height.unique().tolist(), width.unique().tolist()) == ([15, 16], [15, 16])
    after = prompt.position_ids[:, int(video.nonzero().max()) + 1 :]
    assert torch.equal(after, torch.arange(366, 366 + after.shape[1]).expand(3, -1))
    assert prompt.next_position == 366 + after.shape[1]


def test_two_videos_do_not_overlap(tiny_vlm):
    module = tiny_vlm[0]
    prompt = asked(module, Clip(4, seconds=20.0), Clip(4, seconds=20.0))
    times = prompt.position_ids[0][torch.tensor(prompt.ids) == module.config.video_token_id]
    first, second = times.split(8)
    assert second.min() - first.max() == 3, "the end of the first and the start of the second stand between"


def test_all_frames_of_a_very_short_clip_have_one_time(tiny_vlm):
    """0.2 s for two frames are less than one step of the time axis, as in the authors' rule, which rounds down."""
    module = tiny_vlm[0]
    times = asked(module, Clip(4, seconds=0.4)).position_ids[0]
    video = times[(torch.tensor(asked(module, Clip(4, 0.4)).ids) == module.config.video_token_id)]
    assert video.unique().tolist() == [15]


def reference(runs: list, step: float) -> torch.Tensor:
    """(3, P) by the rule in words: every run begins one past the largest position so far, whatever its axis."""
    columns = []
    for run in runs:
        start = 1 + max((max(column) for column in columns), default=-1)
        if isinstance(run, int):
            columns += [(start + i,) * 3 for i in range(run)]
        else:
            frames, rows, cells = run[1][0], run[1][1] // 2, run[1][2] // 2
            interval = step if run[0] == VIDEO else 1
            columns += [
                (start + int(t * interval), start + y, start + x)
                for t in range(frames)
                for y in range(rows)
                for x in range(cells)
            ]
    return torch.tensor(columns).T


# (family, its class, tokens per second or None, whether time stamps stand between the frames of a video)
FAMILIES = [
    ("qwen2_vl", "Qwen2VLModel", None, False),
    ("qwen2_5_vl", "Qwen2_5_VLModel", 2, False),
    ("qwen3_vl", "Qwen3VLModel", None, True),
    ("glm4v", "Glm4vModel", None, True),
    ("ernie4_5_vl_moe", "Ernie4_5_VLMoeModel", None, False),
]


@pytest.mark.parametrize(("family", "name", "tokens_per_second", "stamped"), FAMILIES, ids=[f[0] for f in FAMILIES])
def test_every_family_follows_its_authors_rule(family, name, tokens_per_second, stamped):
    """Reference: qwenvl/data/rope2d.py of the Qwen3-VL repository, get_rope_index_2, _25 and _3; model/positions.py."""
    model = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)
    vision = SimpleNamespace(spatial_merge_size=2, temporal_merge_size=1, tokens_per_second=tokens_per_second)
    rule = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    rule.get_vision_position_ids = model.get_vision_position_ids.__get__(rule)
    picture, video = (IMAGE, (1, 4, 8)), (VIDEO, (30, 4, 6))
    frames = [part for _ in range(30) for part in ((VIDEO, (1, 4, 6)), 3)] if stamped else [video]
    runs = [5, picture, 2, *frames, 4, picture, 6]
    ids = []
    for run in runs:
        ids += [TEXT] * run if isinstance(run, int) else [run[0]] * (run[1][0] * run[1][1] * run[1][2] // 4)
    ids = torch.tensor([ids])
    kinds = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
    rate = {"second_per_grid_ts": torch.tensor([0.75])} if tokens_per_second else {}
    grids = {"image_grid_thw": torch.tensor([picture[1]] * 2), "video_grid_thw": torch.tensor([video[1]])}
    library, _ = model.get_rope_index(rule, ids, mm_token_type_ids=kinds, **grids, **rate)
    expected = reference(runs, 0.75 * tokens_per_second if tokens_per_second else 1)
    assert torch.equal(restarted_after_media(library[:, 0], kinds[0]), expected)
    assert (family in RESTARTED) == (not stamped)
    assert torch.equal(library[:, 0], expected) == stamped, "where the library's rule is the authors', nothing moves"
