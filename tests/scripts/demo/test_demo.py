"""The demo: scenes are reproducible and solvable, and the shipped tiny model is a small but real Qwen2.5-VL."""

import json
import math

import numpy as np
import pytest
import torch
import yaml
from paths import ROOT
from PIL import Image

from scripts.demo import learn_to_name, learn_to_see, make_scenes, make_tiny_model, warm_start

TINY = ROOT / "scripts" / "demo" / "tiny_model"
DEMO = ROOT / "metadata" / "demo"


def read_split(split):
    lines = (DEMO / "trajectory" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def touches(block, a, b, steps=200):
    """True when a point of the segment a-b, sampled densely, lies inside the block's circle."""
    points = np.linspace(a, b, steps)
    return bool((np.hypot(points[:, 0] - block["x"], points[:, 1] - block["y"]) < block["radius"]).any())


# ---- scenes


def test_generator_is_a_function_of_seed_and_index(tmp_path):
    for folder in ("one", "two"):
        make_scenes.write_split(tmp_path / folder, "train", make_scenes.TRAIN_SEED, 6)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 6 + 2
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    other = make_scenes.make_scene(make_scenes.TEST_SEED, 0)
    assert other.path.tolist() != make_scenes.make_scene(make_scenes.TRAIN_SEED, 0).path.tolist()


@pytest.mark.parametrize(("split", "seed"), [("train", make_scenes.TRAIN_SEED), ("test", make_scenes.TEST_SEED)])
def test_shipped_records_are_what_the_generator_makes(split, seed):
    for index in (0, 1, 77):
        scene = make_scenes.make_scene(seed, index)
        record = read_split(split)[index]
        assert record == make_scenes.to_record(scene, record["id"], record["image"])
        with Image.open(DEMO / "trajectory" / record["image"]) as picture:
            assert np.array_equal(np.array(picture), np.array(make_scenes.draw(scene)))


@pytest.mark.parametrize(("split", "count"), [("train", 512), ("test", 128)])
def test_records_are_valid(split, count):
    records = read_split(split)
    assert len(records) == count == len({record["id"] for record in records})
    for record in records:
        width, height = record["meta_data"]["original_width"], record["meta_data"]["original_height"]
        assert record["question_type"] == "trajectory-sharerobot"
        assert record["question"].startswith("Move the gripper to the ")
        assert 3 <= len(record["answer"]) <= 6
        for x, y in record["answer"]:
            assert 0 <= x < width
            assert 0 <= y < height
        for a, b in zip(record["answer"][:-1], record["answer"][1:], strict=True):
            assert not any(touches(block, a, b) for block in record["obstacles"]), record["id"]
    picture_sizes = {(r["meta_data"]["original_width"], r["meta_data"]["original_height"]) for r in records}
    assert len(picture_sizes) > 20
    stretched = sum(width % 28 != 0 or height % 28 != 0 for width, height in picture_sizes)
    assert 5 < stretched < len(picture_sizes)
    assert any(record["obstacles"] for record in records)
    assert any(not record["obstacles"] for record in records)


def test_manifests_name_files_that_exist():
    for split in ("train", "test"):
        path = DEMO / f"trajectory_{split}.yaml"
        (entry,) = yaml.safe_load(path.read_text(encoding="utf-8"))["datasets"]
        assert (path.parent / entry["json_path"]).is_file()
        for record in read_split(split):
            assert (path.parent / entry["data_root"] / record["image"]).is_file()


def test_demo_data_stay_small():
    assert sum(path.stat().st_size for path in (DEMO / "trajectory").rglob("*") if path.is_file()) < 4_000_000


def test_a_straight_path_through_a_block_is_refused_by_the_planner():
    block = make_scenes.Marker(50, 50, 9)
    path, passes = make_scenes.plan_path(np.array([10.0, 48.0]), np.array([90.0, 48.0]), [block], 112, 112)
    assert passes == [(0, "above")]
    assert path[len(path) // 2][1] < 50 - block.radius
    assert make_scenes.clears(path, [block])
    assert not make_scenes.clears(np.array([[10.0, 48.0], [90.0, 48.0]]), [block])


# ---- demonstrations and their measure


def test_demonstrations_have_the_form_that_is_scored():
    rng = np.random.default_rng(0)
    for index in range(200):
        scene = make_scenes.make_scene(warm_start.WARM_SEED, index)
        text = warm_start.demonstrate(scene, rng)
        match = warm_start.COMPLETION.fullmatch(text)
        assert match, text
        width, height = scene.processed_size
        for x, y in warm_start.PAIR.findall(match.group(1)):
            assert 0 <= int(x) < width
            assert 0 <= int(y) < height
        assert scene.target_name in text


def test_discrete_frechet_of_known_paths():
    a, b = np.array([[0, 0], [10, 0], [20, 0]], float), np.array([[0, 3], [20, 3]], float)
    assert warm_start.discrete_frechet(a, b) == pytest.approx(10.4403, abs=1e-4)
    assert warm_start.discrete_frechet(a[::-1], a) == pytest.approx(20.0)
    assert warm_start.discrete_frechet(a, a) == 0.0


# ---- the tiny model


@pytest.fixture(scope="module")
def processor():
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(TINY, local_files_only=True)


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(TINY, dtype=torch.float32, local_files_only=True).eval()


def test_model_is_a_small_qwen2_5_vl(model, processor):
    assert type(model).__name__ == "Qwen2_5_VLForConditionalGeneration"
    assert type(processor).__name__ == "Qwen2_5_VLProcessor"
    assert sum(parameter.numel() for parameter in model.parameters()) <= 5_000_000
    assert (TINY / "model.safetensors").stat().st_size <= 12_000_000
    text = model.config.text_config
    assert text.hidden_size // text.num_attention_heads == 32
    assert sum(text.rope_parameters["mrope_section"]) == 16


def test_sampling_defaults_are_the_trap_that_qwen_ships(model):
    defaults = model.generation_config
    assert (defaults.do_sample, defaults.top_k, defaults.temperature) == (True, 1, 1e-6)
    assert defaults.repetition_penalty == 1.05


def test_digits_are_single_tokens_and_think_tags_are_plain_text(processor):
    tokenizer = processor.tokenizer
    assert len(tokenizer("0123456789").input_ids) == 10
    assert len(tokenizer("</think>").input_ids) > 1
    assert len(tokenizer("<think>").input_ids) > 1
    text = "<think>a</think><answer>[[1, 22], [133, 4]]</answer> é 漢"
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert tokenizer.decode(tokenizer("a</think><answer>").input_ids[:-3]).endswith("</think>")
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


@pytest.mark.parametrize("size", [(84, 112), (140, 140), (112, 84)])
def test_small_pictures_keep_their_size(processor, size):
    grid = processor.image_processor(images=[Image.new("RGB", size)], return_tensors="pt")["image_grid_thw"][0]
    assert (int(grid[2]) * 14, int(grid[1]) * 14) == size


def test_scenes_know_their_processed_size(processor):
    for index in range(40):
        scene = make_scenes.make_scene(make_scenes.TEST_SEED, index)
        grid = processor.image_processor(images=[make_scenes.draw(scene)], return_tensors="pt")["image_grid_thw"][0]
        assert scene.processed_size == (int(grid[2]) * 14, int(grid[1]) * 14)


def test_template_renders_pictures_and_question_of_a_mixed_row(processor):
    question = "Move the gripper to the red cube."
    before, after = {"type": "text", "text": "Before:"}, {"type": "text", "text": question}
    turn = {"role": "user", "content": [{"type": "image"}, before, {"type": "image"}, after]}
    text = processor.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
    assert text.count("<|image_pad|>") == 2
    assert "You are a helpful assistant." in text
    assert text.endswith(f"<|vision_start|><|image_pad|><|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n")
    pictures = [Image.new("RGB", (84, 112)), Image.new("RGB", (56, 56))]
    ids = processor(text=[text], images=pictures, return_tensors="pt")["input_ids"][0].tolist()
    assert ids.count(processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")) == 12 + 4


def test_template_has_the_real_ones_behaviour(processor):
    """A text part with an `image` key counts as a picture, a system turn replaces the default, video has its pad."""
    spoilt = [{"role": "user", "content": [{"type": "text", "image": None, "text": "Q"}]}]
    text = processor.apply_chat_template(spoilt, tokenize=False)
    assert "<|image_pad|>" in text
    assert "Q" not in text
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "video"}]}]
    text = processor.apply_chat_template(turns, tokenize=False)
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|vision_start|><|video_pad|>")
    assert "helpful" not in text


@torch.no_grad()
def test_logits_depend_on_the_picture(model, processor):
    scene = make_scenes.make_scene(make_scenes.TEST_SEED, 0)
    picture = make_scenes.draw(scene)
    text = [warm_start.render(processor, scene)]
    seen = processor(text=text, images=[picture], return_tensors="pt")
    blank = processor(text=text, images=[Image.new("RGB", picture.size)], return_tensors="pt")
    gap = (model(**seen).logits[0, -1] - model(**blank).logits[0, -1]).abs().max().item()
    assert math.isfinite(gap)
    assert gap > 1e-3


def test_shipped_tokenizer_and_template_are_what_the_code_builds(processor):
    built = make_tiny_model.build_processor(make_tiny_model.build_tokenizer())
    assert built.tokenizer.get_vocab() == processor.tokenizer.get_vocab()
    assert built.chat_template == processor.chat_template
    assert make_tiny_model.build_config(built.tokenizer).to_dict()["text_config"]["vocab_size"] >= len(built.tokenizer)


# ---- the warm start


def test_only_the_demonstration_is_learned(processor):
    scenes = [make_scenes.make_scene(warm_start.WARM_SEED, index) for index in range(3)]
    batch, labels = warm_start.make_batch(processor, scenes, np.random.default_rng(5), flawed=True)
    rng = np.random.default_rng(5)
    for scene, row in zip(scenes, labels, strict=True):
        assert processor.tokenizer.decode(row[row != -100]) == warm_start.demonstrate(scene, rng) + "<|im_end|>"
    assert batch["image_grid_thw"].shape == (3, 3)


def test_flawless_demonstrations_start_and_end_at_gripper_and_target():
    for index in range(50):
        scene = make_scenes.make_scene(warm_start.WARM_SEED, index)
        text = warm_start.demonstrate(scene, np.random.default_rng(index), flawed=False)
        path = np.array(warm_start.PAIR.findall(warm_start.COMPLETION.fullmatch(text).group(1)), dtype=float)
        assert np.abs(path[0] - scene.gripper.xy * scene.scale).max() <= 1
        assert np.abs(path[-1] - scene.objects[0][0].xy * scene.scale).max() <= 1


def test_patch_targets_point_at_the_patch_that_holds_the_thing(processor):
    scenes = [make_scenes.make_scene(learn_to_see.SEE_SEED, index) for index in range(4)]
    pictures = [make_scenes.draw(scene) for scene in scenes]
    grids = processor.image_processor(images=pictures, return_tensors="pt")["image_grid_thw"]
    rows, patches = learn_to_see.targets(scenes, grids)
    assert patches == sum(w * h // 28**2 for w, h in (scene.processed_size for scene in scenes))
    width, height = scenes[0].processed_size
    x, y = scenes[1].gripper.xy * scenes[1].scale  # the second picture's patches follow the first's
    expected = (width * height) // 28**2 + int(y // 28) * (scenes[1].processed_size[0] // 28) + int(x // 28)
    gripper_rows = rows[rows[:, 1] == learn_to_see.KINDS.index("gripper")]
    assert gripper_rows[1].tolist() == [expected, 0, int(x // learn_to_see.BIN), int(y // learn_to_see.BIN)]


def test_every_thing_on_the_table_is_named_once():
    scene = make_scenes.make_scene(learn_to_name.NAME_SEED, 1)
    spoken = learn_to_name.sentences(scene)
    assert len(spoken) == 1 + len(scene.blocks) + len(scene.objects)
    assert sum("Gripper" in sentence for sentence in spoken) == 1
    assert any(scene.target_name in sentence for sentence in spoken)
