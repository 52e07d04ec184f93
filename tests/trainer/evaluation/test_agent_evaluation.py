"""Agents in evaluation: one chain a record with tools, its turns and calls as columns, a failed tool as a status."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from agent_cases import Echo
from engine_cases import engine
from paths import ROOT
from trainer_cases import text_rows, text_trainer

from config.methods.tree_grpo import TreeGRPOFields
from dataset.dataset_grpo import rows_from_records
from scripts.eval import eval as script
from task.retrieval.passages import RetrievalError
from task.task_loader import load_tasks
from trainer.engines.sampling import Sampling
from trainer.evaluation.predict import predict
from trainer.evaluation.summary import summarise
from trainer.policies.agent.build import policies_of_evaluation
from trainer.policies.agent.forms import Action, TagForm, Turn


class Failing(Echo):
    def search(self, query: str) -> str:
        """Looks.

        Args:
            query: for what.

        Returns:
            Nothing.
        """
        raise RetrievalError("refused", "no server")


@pytest.fixture
def acting(monkeypatch):
    """A random model writes no tags: here it searches, whatever it writes, until it may not any more."""
    monkeypatch.setattr(TagForm, "read", lambda self, text, ended: Turn(actions=(Action("search", "q"),)))


def predictions(tiny_text, made, **settings):
    module, _, tokenizer = tiny_text
    task = replace(load_tasks()["search_qa"], make_environment=made)
    plain = load_tasks()["math-reasoning"]
    tasks = {"search_qa": task, "math-reasoning": plain}
    records = [{"question": f"{i}?", "answer": "x", "question_type": name} for i, name in enumerate([*tasks] * 2)]
    rows = rows_from_records(records, tasks)
    args = TreeGRPOFields(max_turns=2, max_turn_length=5, max_observation_length=40)
    agents = policies_of_evaluation(args, {}, tasks, tokenizer, module, 64)
    with torch.no_grad():
        grower = engine(tiny_text, Sampling(0.0))
        found = predict(grower, module, rows, tasks, max_new_tokens=8, batch_size=4, policy_of=agents, **settings)
    return found, summarise(found, tasks)


def test_agents_and_plain_tasks_in_one_call(tiny_text, acting):
    found, summary = predictions(tiny_text, Echo)
    assert [item["question_type"] for item in found] == ["search_qa", "math-reasoning"] * 2
    assert all(item["turns"] == item["tool_calls"] == 2 for item in found[::2])
    assert all("<information>found q</information>" in item["completion"] for item in found[::2])
    assert "turns" not in found[1] and summary["search_qa"]["tool_calls"] == 2
    assert {"em", "f1", "turns"} <= set(summary["search_qa"]) and "em" not in summary["math-reasoning"]


def test_a_tool_that_fails_is_a_status_of_its_record(tiny_text, acting):
    found, summary = predictions(tiny_text, Failing)
    assert [item["status"] for item in found[::2]] == ["tool_error"] * 2 and found[0]["error"] == "refused"
    assert summary["search_qa"]["n_tool_error"] == 2 and summary["math-reasoning"]["n"] == 2


def test_the_trainer_evaluates_agents_as_agents(tiny_text, tmp_path, acting):
    tasks = {"search_qa": replace(load_tasks()["search_qa"], make_environment=Echo)}
    rows = text_rows(2)
    rows = rows.map(lambda row: {"record": json.dumps(json.loads(row["record"]) | {"question_type": "search_qa"})})
    trainer = text_trainer(
        tiny_text, tmp_path, rows=rows, method="tree_grpo", max_turn_length=5, max_observation_length=40,
        max_completion_length=100, per_device_eval_batch_size=2,
    )  # fmt: skip
    trainer.tasks = tasks
    metrics = trainer.evaluate(rows)
    assert metrics["eval_search_qa/turns"] >= 1 and metrics["eval_search_qa/n"] == 2


def test_the_command_evaluates_the_search_demo(tmp_path, capsys):
    pytest.importorskip("bm25s")
    demo = ROOT / "metadata" / "demo"
    flags = ["--model_name_or_path", ROOT / "scripts/demo/tiny_text_model", "--dataset", demo / "search_test.yaml"]
    flags += ["--environment_args", json.dumps({"retriever": str(demo / "search/corpus.jsonl")}), "--limit", 6]
    flags += ["--max_new_tokens", 512, "--max_turn_length", 64, "--output_dir", tmp_path]
    assert script.main([str(flag) for flag in flags]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("em ", "f1 ", "turns ", "tool_calls "))
    found = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert len(found) == 6 and all(item["tool_calls"] >= 1 and item["tool_error"] is None for item in found)
    assert all("<information>Doc 1(Title: " in item["completion"] for item in found)
