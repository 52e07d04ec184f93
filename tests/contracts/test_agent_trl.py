"""An environment of ours in TRL's own trainer, as it is: same tools, a reset a rollout, and a step of training."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import trl
from agent_cases import Counter, ForkingCounter
from datasets import Dataset

from task.agents.environment import tools_of
from task.gridworld import GridworldEnvironment
from task.search_qa import SearchEnvironment

BOARD = ["SF", "FG"]


@pytest.fixture
def corpus(tmp_path):
    pytest.importorskip("bm25s")
    file = tmp_path / "corpus.jsonl"
    documents = [
        {"id": str(i), "title": name, "text": f"{name} is a river."} for i, name in enumerate(("Seine", "Oder"))
    ]
    file.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return str(file)


def stock_trainer(tiny_text, folder, factory, **columns):
    _, model, tokenizer = tiny_text
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    row = {"prompt": [{"role": "user", "content": "Which river?"}]} | columns
    args = trl.GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=2, num_generations=2, max_completion_length=8, max_steps=1,
        use_cpu=True, bf16=False, report_to="none", save_strategy="no", disable_tqdm=True, gradient_checkpointing=False,
    )  # fmt: skip
    return trl.GRPOTrainer(
        model=copy.deepcopy(model),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **kwargs: [float(i) for i in range(len(completions))],
        args=args,
        train_dataset=Dataset.from_list([row] * 2),
        environment_factory=factory,
    )


@pytest.mark.parametrize("factory", [SearchEnvironment, GridworldEnvironment, Counter, ForkingCounter])
def test_trl_finds_exactly_our_tools(tiny_text, tmp_path, factory):
    trainer = stock_trainer(tiny_text, tmp_path, factory)
    assert [tool.__name__ for tool in trainer.tools] == list(tools_of(factory()))
    assert not any(name.startswith("_") or name in ("reset", "get_reward") for name in tools_of(factory()))


def test_a_search_environment_trains_there(tiny_text, tmp_path, corpus):
    made = []

    def factory():
        made.append(SearchEnvironment())
        return made[-1]

    trainer = stock_trainer(tiny_text, tmp_path, factory, retriever=corpus, top_k=1)
    trainer.train()
    assert trainer.state.global_step == 1
    asked = [environment for environment in made if environment._retriever is not None]
    assert len(asked) >= 2 and asked[0].search("Seine") == "Doc 1(Title: Seine) Seine is a river.\n"


def test_a_gridworld_environment_trains_there(tiny_text, tmp_path):
    trainer = stock_trainer(tiny_text, tmp_path, GridworldEnvironment, answer=BOARD)
    trainer.train()
    assert trainer.state.global_step == 1
    assert [environment.get_reward() for environment in trainer.environments] == [0.0, 0.0]
