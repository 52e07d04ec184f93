"""Search agents over the real retrievers: a local corpus, and a server that is killed while they run."""

from __future__ import annotations

import json

import pytest
from agent_cases import ScriptedAgent, policy_of, task_of, turns
from local_server import LocalServer, send

from task.search_qa import make_environment

ANSWER = "<think>t</think><answer>x</answer>"


@pytest.fixture
def corpus(tmp_path):
    pytest.importorskip("bm25s")
    file = tmp_path / "corpus.jsonl"
    file.write_text(json.dumps({"id": "1", "title": "Seine", "text": "A river through Paris."}) + "\n")
    return str(file)


def grown(tiny, settings, write, ids=("a",), **changes):
    tasks = {"search": task_of(make_environment, "search")}
    policy = policy_of(None, tiny, ids=ids, tasks=tasks, environment_args=json.dumps(settings), **changes)
    trees = ScriptedAgent(tiny[2], write).grow(policy, ids)
    sums = policy.metrics(trees)
    return trees, {name.split("/")[-1]: total for name, (total, _) in sums.items() if "errors" in name and total}


def found(question):
    result = [{"document": {"id": "1", "contents": '"Oder"\nA river.'}, "score": 1.0}]
    return json.dumps({"result": [result for _ in question["queries"]]}).encode()


def test_passages_of_a_corpus_stand_in_the_observation(tiny_text, corpus):
    write = turns("<think>t</think><search>Which river flows through Paris?</search>", ANSWER)
    (tree,), errors = grown(tiny_text, {"retriever": corpus, "top_k": 2}, write)
    wanted = "\n\n<information>Doc 1(Title: Seine) A river through Paris.\n</information>\n\n"
    assert tiny_text[2].decode(tree.nodes[2].token_ids) == wanted and not errors


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "name a corpus folder"),
        ({"retriever": "/no/such/corpus"}, "no/such/corpus"),
        ({"retriever": "ftp://x"}, "ftp://x"),
        ({"retriever": "http://localhost:1", "top_k": 0}, "top_k"),
    ],
)
def test_settings_that_cannot_work_end_the_run(tiny_text, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        grown(tiny_text, settings, turns(ANSWER))


def test_a_server_that_is_killed_ends_branches_and_is_counted(tiny_text):
    pytest.importorskip("httpx2")
    server, asked = LocalServer(lambda handler, question: send(handler, found(question))), iter(range(1000))

    def write(tree, parent):
        number = next(asked)
        if number == 3:
            server.stop()
        return f"<think>t</think><search>river {number}</search>"

    trees, errors = grown(tiny_text, {"retriever": f"{server.url}/retrieve", "timeout": 2.0}, write, max_turns=2)
    assert errors["refused"] > 0 and all(len(tree.leaves()) == 6 for tree in trees)
    assert {node.status for node in trees[0].nodes} >= {"ok", "failed"}


def test_an_answer_that_is_not_json_ends_the_branch(tiny_text):
    pytest.importorskip("httpx2")
    server = LocalServer(lambda handler, question: send(handler, b"<html>"))
    (tree,), errors = grown(
        tiny_text,
        {"retriever": f"{server.url}/retrieve"},
        turns("<search>q</search>", ANSWER),
        tree_num=2,
        expand_num=0,
    )
    server.stop()
    assert errors == {"bad_json": 2} and {tree.nodes[leaf].status for leaf in tree.leaves()} == {"failed"}
