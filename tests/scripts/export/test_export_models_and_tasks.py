"""The exported model is the run's: an adapter merged, chat template switches, opened thoughts; own tasks come along."""

import copy
import json
import runpy

import pytest
import torch
from family_runs import saved
from paths import ROOT
from peft import LoraConfig, get_peft_model

from model.loading import load_policy
from model.registry import module_for
from task.errors import UserError
from trainer.evaluation.exported import ExportedTests

DATA = ROOT / "metadata" / "demo" / "ocr_test.yaml"


@pytest.fixture
def adapter(tiny_vlm, tiny_model_dir, tmp_path):
    """A random adapter, saved with a processor of picture limits of its own."""
    module, model, _ = tiny_vlm
    torch.manual_seed(0)
    targets = module.lora_target_modules(model)
    tuned = get_peft_model(copy.deepcopy(model), LoraConfig(r=4, target_modules=targets, init_lora_weights=False))
    tuned.peft_config["default"].base_model_name_or_path = str(tiny_model_dir)
    tuned.save_pretrained(tmp_path / "adapter")
    reader = module_for(str(tiny_model_dir))
    reader.load_processor(str(tiny_model_dir), 3136, 5488).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.slow
def test_an_adapter_is_merged_and_keeps_its_picture_limits(export, adapter, tmp_path):
    out = tmp_path / "out"
    words = ("--adapter_path", adapter, "--dataset", DATA, "--limit", 1, "--output_dir", out)
    assert export("lmms-eval", *words) == 0
    assert "min_pixels=3136,max_pixels=5488" in (out / "run.sh").read_text()
    with_adapter, merged = (
        load_policy(None, str(adapter), dtype="float32"),
        load_policy(str(out / "qwen2_5_vl"), dtype="float32"),
    )
    ids = torch.tensor([with_adapter[0].encode([{"role": "user", "content": "Where?"}]).ids])
    logits = [model.eval()(input_ids=ids).logits for _, model, _ in (with_adapter, merged)]
    assert (logits[0] - logits[1]).abs().max() < 1e-4


OPENS = ("{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\n' }}{{ '' if quiet else '<think>\\n' }}")


@pytest.mark.parametrize("quiet", [False, True])
def test_switches_are_set_in_the_template_and_an_opened_thought_is_put_back(export, model_copy, tmp_path, quiet):
    folder, out = model_copy("chat_template.jinja", OPENS), tmp_path / "out"
    switches = ("--chat_template_kwargs", json.dumps({"quiet": True})) if quiet else ()
    words = ("--model_name_or_path", folder, *switches, "--dataset", DATA, "--limit", 1, "--output_dir", out)
    assert export("lmms-eval", *words) == 0
    module = module_for(str(out / "qwen2_5_vl"))
    module.load_processor(str(out / "qwen2_5_vl"))
    assert module.opened_thought == ("" if quiet else "<think>\n")
    tests = ExportedTests(out / "tests")
    row = json.loads(json.loads((out / "tests" / "grpo_ma_ocr-vqa.jsonl").read_text())["row"])
    rest = "A clock.</think><answer>7:15</answer>"
    assert tests.prediction(row, rest)["format"] == float(not quiet)
    assert tests.prediction(row, "<think>" + rest)["format"] == float(quiet)


def test_the_system_turn_that_lmms_eval_adds_to_qwen3_vl_leaves_the_prompt_as_it_was(export, tmp_path):
    out = tmp_path / "out"
    model = ("--model_name_or_path", saved("qwen3_vl", tmp_path / "model"))
    assert export("lmms-eval", *model, "--dataset", DATA, "--limit", 1, "--output_dir", out) == 0
    assert "attn_implementation=sdpa,system_prompt=${MODEL_ARGS" in (out / "run.sh").read_text()
    before, after = module_for(str(tmp_path / "model")), module_for(str(out / "qwen3_vl"))
    before.load_processor(str(tmp_path / "model"))
    template = after.load_processor(str(out / "qwen3_vl")).apply_chat_template
    added = {"role": "system", "content": [{"type": "text", "text": ""}]}
    for own in ([], [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]):
        turns = [*own, {"role": "user", "content": [{"type": "text", "text": "?"}]}]
        expected = before.render(turns)
        assert template([added, *turns], tokenize=False, add_generation_prompt=True) == expected
        assert after.render(turns) == expected
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]
    assert template(plain, tokenize=False).startswith("<|im_start|>system"), "a turn that is plain text stays"


def test_own_tasks_come_along_with_their_helpers(export, tiny_model_dir, tmp_path, monkeypatch):
    text = (ROOT / "task" / "TEMPLATE.py").read_text(encoding="utf-8").replace('"my-task"', '"flower, wild"')
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "flower.py").write_text("import _petals  # noqa: F401\n" + text)
    (tmp_path / "own" / "_petals.py").write_text("")
    picture = ROOT / "metadata" / "demo" / "ocr" / "images" / "ocr-test-00000.png"
    record = {"question_type": "flower, wild", "question": "Which?", "answer": "rose", "image": str(picture)}
    (tmp_path / "test.jsonl").write_text(json.dumps(record) + "\n")
    monkeypatch.setenv("GRPO_MA_TASKS", str(tmp_path / "own"))
    out = tmp_path / "out"
    words = ("--model_name_or_path", tiny_model_dir, "--dataset", tmp_path / "test.jsonl", "--output_dir", out)
    assert export("lmms-eval", *words) == 0
    monkeypatch.setenv("GRPO_MA_TASKS", "")
    assert {file.name for file in (out / "tests" / "own_tasks").iterdir()} == {"flower.py", "_petals.py"}
    row = json.loads(json.loads((out / "tests" / "grpo_ma_flower__wild.jsonl").read_text())["row"])
    scores = ExportedTests(out / "tests").scores(row, "<think></think><answer>Rose</answer>")
    assert scores == {"parse_failure_rate": 0.0, "accuracy": 1.0, "format": 1.0}
    doc_to_text = runpy.run_path(str(out / "tests" / "lmms_eval_task.py"))["doc_to_text"]
    assert doc_to_text({"text": "Which?"}) == "Which?"

    own = out / "tests" / "own_tasks" / "flower.py"  # in an environment in which its rewards do not work
    own.write_text(own.read_text().replace("return float(normal_text", "return 0 * float(normal_text"))
    doc_to_text = runpy.run_path(str(out / "tests" / "lmms_eval_task.py"))["doc_to_text"]
    with pytest.raises(UserError, match=r"flower.py: the rewards fail their SELF_TEST"):
        doc_to_text({"text": "Which?"})
