"""scripts/train/sft.py: what a record teaches, where the labels stand, and that it learns and reloads."""

import json
import shutil

import pytest
import torch
from PIL import Image
from reward_cases import make_task
from safetensors.torch import load_file

from dataset.dataset_grpo import build_dataset
from model.loading import load_policy
from model.registry import module_for
from scripts.train import sft
from task.task_loader import load_tasks

SHORT, LONG = "Up.", "The cube is on the right of the gripper."


@pytest.fixture
def manifest(tmp_path):
    """Two records: a picture that the processor resizes, and one that it keeps, with a longer thought."""
    records = []
    for i, (size, thought) in enumerate([((100, 90), SHORT), ((112, 84), LONG)]):
        Image.new("RGB", size, (50 * i, 90, 120)).save(tmp_path / f"{i}.png")
        record = {"id": f"r{i}", "image": f"{i}.png", "question_type": "trajectory-sharerobot", "thought": thought}
        record |= {"question": "Move the gripper to the red cube.", "answer": [[10.0, 20.0], [50.0, 45.0]]}
        records.append(record)
    (tmp_path / "data.json").write_text(json.dumps(records))
    source = {"json_path": "data.json", "data_root": ".", "data_modality": "image", "sampling_strategy": "all"}
    (tmp_path / "data.yaml").write_text(json.dumps({"datasets": [source]}))
    return str(tmp_path / "data.yaml")


@pytest.fixture
def collator(tiny_vlm):
    module, _, processor = tiny_vlm
    return sft.Collator(module, processor.tokenizer, load_tasks())


def arguments(manifest, tiny_model_dir, tmp_path, *more):
    flags = ["--model_name_or_path", tiny_model_dir, "--dataset", manifest, "--output_dir", tmp_path / "out"]
    flags += ["--use_cpu", "--per_device_train_batch_size", 2, "--disable_tqdm", "true", "--logging_steps", 1, *more]
    return [str(flag) for flag in flags]


def test_labels_are_the_completion_in_the_processed_frame(manifest, collator, tiny_vlm):
    tokenizer = tiny_vlm[2].tokenizer
    batch = collator(list(build_dataset(manifest, load_tasks())))
    for row, size, thought in ((0, (112, 84), SHORT), (1, (112, 84), LONG)):
        labels = batch["labels"][row]
        kept = labels[labels != sft.IGNORED]
        points = [[10, 20], [50, 45]]
        if row == 0:  # 100 x 90 becomes 112 x 84
            points = [[round(x * size[0] / 100), round(y * size[1] / 90)] for x, y in points]
        expected = f"<think>{thought}</think><answer>{json.dumps(points)}</answer><|im_end|>"
        assert tokenizer.decode(kept) == expected
        where = (labels != sft.IGNORED).nonzero().flatten()
        assert torch.equal(batch["input_ids"][row][where], kept)
        assert tokenizer.decode(batch["input_ids"][row, : where[0]]).endswith("<|im_start|>assistant\n")
        steps = batch["position_ids"][:, row, where[0] - 1 : where[-1] + 1].diff()
        assert torch.equal(steps, torch.ones_like(steps))


def test_targets_are_on_the_models_scale_and_go_on_inside_a_thought_that_the_template_opened(
    manifest, tiny_model_dir, monkeypatch
):
    module = module_for(tiny_model_dir)
    processor = module.load_processor(str(tiny_model_dir))
    opening = "{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
    monkeypatch.setattr(processor, "chat_template", processor.chat_template + opening)
    tasks = load_tasks(coordinate_frame="norm1000")
    batch = sft.Collator(module, processor.tokenizer, tasks)(list(build_dataset(manifest, tasks))[:1])
    labels, ids = batch["labels"][0], batch["input_ids"][0]
    learnt = processor.tokenizer.decode(labels[labels != sft.IGNORED])
    assert learnt == f"{SHORT}</think><answer>[[100, 222], [500, 500]]</answer><|im_end|>"
    prompt = processor.tokenizer.decode(ids[labels == sft.IGNORED])
    assert prompt.endswith("<|im_start|>assistant\n<think>\n") and "0 to 1000" in prompt


def test_padding_changes_no_loss(manifest, collator, tiny_vlm):
    _, model, _ = tiny_vlm
    rows = list(build_dataset(manifest, load_tasks()))
    together = collator(rows)
    with torch.no_grad():
        logits = model(**{k: v for k, v in together.items() if k != "labels"}).logits
        for i, row in enumerate(rows):
            alone = collator([row])
            n = alone["input_ids"].shape[1]
            torch.testing.assert_close(model(**alone).logits[0], logits[i, :n], atol=1e-4, rtol=1e-4)
    assert together["attention_mask"].sum(dim=1).tolist() != [together["input_ids"].shape[1]] * 2


def test_all_weights_can_be_resumed(manifest, tiny_model_dir, tmp_path, capsys):
    flags = arguments(manifest, tiny_model_dir, tmp_path, "--lora_rank", 0, "--max_steps", 2, "--save_steps", 1)
    assert sft.main(flags) == 0
    whole = load_file(tmp_path / "out" / "model.safetensors")
    assert sft.main(flags) == 2
    refused = capsys.readouterr().err
    assert "holds checkpoint-2, which a run from step 0 would overwrite" in refused
    assert "--resume_from_checkpoint auto" in refused and "--resume_weights_only" not in refused  # it has no such flag
    shutil.rmtree(tmp_path / "out" / "checkpoint-2")
    assert sft.main([*flags, "--resume_from_checkpoint", "auto"]) == 0
    resumed = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    first = load_file(tmp_path / "out" / "checkpoint-1" / "model.safetensors")
    assert any(not torch.equal(whole[name], first[name]) for name in whole)


def test_two_steps_lower_the_loss_and_the_adapter_reloads(manifest, tiny_model_dir, tmp_path):
    flags = arguments(manifest, tiny_model_dir, tmp_path, "--max_steps", 3, "--learning_rate", 3e-3, "--lora_rank", 8)
    assert sft.main([*flags, "--lr_scheduler_type", "constant", "--save_strategy", "no"]) == 0
    trained = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in trained if "loss" in entry]
    assert len(losses) == 3
    assert losses[2] < losses[0]

    module, model, processor = load_policy(None, str(tmp_path / "out"), dtype="float32")
    _, base, _ = load_policy(str(tiny_model_dir), dtype="float32")
    tasks = load_tasks()
    batch = sft.Collator(module, processor.tokenizer, tasks)(list(build_dataset(manifest, tasks)))
    with torch.no_grad():
        assert model.eval()(**batch).loss < base.eval()(**batch).loss


def test_full_training_leaves_the_vision_tower_alone(manifest, tiny_model_dir, tmp_path):
    flags = arguments(manifest, tiny_model_dir, tmp_path, "--max_steps", 1, "--learning_rate", 1e-3, "--lora_rank", 0)
    assert sft.main(flags) == 0
    module, model, _ = load_policy(str(tmp_path / "out"), dtype="float32")
    _, base, _ = load_policy(str(tiny_model_dir), dtype="float32")
    before = dict(base.named_parameters())
    moved = {module.tower_of(name) for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"language"}


@pytest.mark.parametrize(
    ("thought", "words"),
    [
        (None, "record 'r0' has no thought"),
        ("a </think> b", "record 'r0': its thought must be a string without </think>"),
    ],
)
def test_thoughts_are_checked_before_anything_is_loaded(manifest, tiny_model_dir, tmp_path, capsys, thought, words):
    file = tmp_path / "data.json"
    records = json.loads(file.read_text())
    records[0]["thought"] = thought
    file.write_text(json.dumps(records))
    assert sft.main(arguments(manifest, tiny_model_dir, tmp_path)) == 2
    assert words in capsys.readouterr().err


def test_a_target_the_format_reward_refuses_is_refused():
    task = make_task(form=lambda completion, sol, **kw: 0.0)
    record = {"id": "a", "question_type": "t", "answer": "4", "extra": {"thought": "2 and 2"}}
    with pytest.raises(ValueError, match=r"record 'a'.*task/words\.py does not accept the target"):
        sft.target_text(record, task, None, None)


def test_numbers_are_rounded_only_where_they_are_coordinates():
    task = make_task(thought_end="</a>")
    record = {"id": "a", "question_type": "t", "answer": [2.5, {"label": "x"}], "extra": {}}
    assert sft.target_text(record, task, None, None) == '<a></a><answer>[2.5, {"label": "x"}]</answer>'
    task = make_task(thought_end="</a>", frame="original")
    assert sft.target_text(record, task, None, None) == '<a></a><answer>[2, {"label": "x"}]</answer>'
