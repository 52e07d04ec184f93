"""What rewards read of a completion: everything but the end, padding and turn tokens at its tail."""

import copy
import json

import pytest
from trainer_cases import script, text_rows, text_trainer, thought_tree

from model.registry import module_for
from task.task_loader import load_tasks
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.evaluation.predict import predict
from trainer.tree import PROMPT, Node, Tree

RIGHT = "<think>two steps</think><answer>4</answer>"
LISTED = [("<answer>", "</answer>"), ("answer",), ("<think>", "</think>"), ("think", "</"), ("4",)]


@pytest.fixture
def listing(tiny_text_dir, tiny_text):
    """(module, model, tokenizer) whose tokenizer lists these texts as special."""

    def make(texts):
        module = module_for(str(tiny_text_dir))
        tokenizer = module.load_processor(str(tiny_text_dir))
        tokenizer.add_special_tokens({"additional_special_tokens": list(texts)})
        model = copy.deepcopy(tiny_text[1])
        model.resize_token_embeddings(len(tokenizer))
        module.config.get_text_config().vocab_size = len(tokenizer)
        return module, model, tokenizer

    return make


def spell(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("texts", LISTED)
def test_listed_tags_reach_a_reward_in_training(listing, tmp_path, monkeypatch, texts):
    module, model, tokenizer = listing(texts)
    thought, answer = RIGHT.split("<answer>")
    tree = [
        [spell(tokenizer, thought)] * 2,
        [[[*spell(tokenizer, "<answer>" + answer), tokenizer.eos_token_id]] * 2] * 2,
    ]
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, *tree))
    seen = []

    def reward(completions, **kwargs):
        seen.extend(completions)
        return [0.0] * len(completions)

    trainer = text_trainer((module, model, tokenizer), tmp_path, rows=1, reward=reward, log_completions=True)
    trainer.train()
    assert seen == [RIGHT] * 4
    assert list(trainer._logs["completion"]) == [RIGHT] * 4


@pytest.mark.parametrize("texts", LISTED)
def test_listed_tags_reach_a_reward_in_evaluation(listing, monkeypatch, texts):
    module, model, tokenizer = listing(texts)

    def grow(self, prompts, policy, prompt_ids):
        trees = [Tree(name) for name in prompt_ids]
        for tree in trees:
            tree.add(Node(PROMPT, "segment", [*spell(tokenizer, RIGHT), tokenizer.eos_token_id]))
        return trees

    monkeypatch.setattr(TransformersEngine, "grow", grow)
    engine = TransformersEngine(model, module, tokenizer, Sampling(0.0), [tokenizer.eos_token_id], [])
    tasks = load_tasks()
    (row,) = text_rows(1)
    record = json.loads(row["record"]) | {"question_type": "math-reasoning", "answer": "4"}
    (found,) = predict(engine, module, [{"record": json.dumps(record)}], tasks, max_new_tokens=50, batch_size=1)
    assert (found["completion"], found["prediction"], found["format"], found["accuracy"]) == (RIGHT, "4", 1.0, 1.0)


def test_only_the_tail_is_cut(listing):
    module, _, tokenizer = listing(["<answer>"])
    eos, start = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_start|>")
    other = spell(tokenizer, "x")
    body = spell(tokenizer, f"{RIGHT}<|im_end|>\n<|im_start|>tool")
    rows = [
        [*body, eos, tokenizer.pad_token_id, start],
        [*body, *other],
        [eos],
        [],
        [*spell(tokenizer, "<answer>"), eos],
    ]
    texts = module.completion_texts(rows, [eos, *other])
    whole = f"{RIGHT}<|im_end|>\n<|im_start|>tool"
    assert texts == [whole, whole, "", "", "<answer>"]
