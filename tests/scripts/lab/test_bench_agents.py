"""The benchmark of agents: Tree-GRPO trees of the search demo, their budget, and the same trees with slow tools."""

from __future__ import annotations

from argparse import Namespace

import pytest
from engine_cases import assert_dense, assert_sound
from paths import ROOT

from scripts.lab import agents
from trainer.policies.agent.step import TreeShape


@pytest.fixture(scope="module")
def bench(one_thread):
    pytest.importorskip("bm25s")
    return agents.Bench(
        Namespace(
            model_name_or_path=str(ROOT / "scripts/demo/tiny_text_model"),
            dataset=str(ROOT / "metadata/demo/search_test.yaml"),
            retriever="metadata/demo/search/corpus.jsonl",
            prompts=8,
            slow_prompts=4,
            latency=0.2,
            seed=0,
        )
    )


def test_leaves_of_a_forest_replayed_from_scratch_have_the_same_log_probs(bench):
    trees, counts, _ = bench.grow(TreeShape(2, 2, 1))
    assert counts["recomputed_tokens"] == 0
    eos = bench.module.eos_token_ids(bench.tokenizer)
    for prompt, tree in zip(bench.prompts, trees, strict=True):
        assert len(tree.leaves()) == 6
        assert_sound(tree, eos)
        assert_dense((bench.module, bench.model, bench.tokenizer), prompt, tree)
    assert sum(node.kind == "observation" for tree in trees for node in tree.nodes) > 2 * len(trees)


def test_budget_is_told_in_chains_by_hops(bench):
    found = agents.budget(bench, TreeShape(2, 2, 1))
    assert found["leaves"] == 6 and found["recomputed_tokens"] == 0
    assert sum(row["prompts"] for hops, row in found["hops"].items() if hops != "2 and more") == 8
    assert 2 < found["hops"]["2 and more"]["tree_tokens_in_chains"] < 6


def test_slow_tools_beside_decoding_sample_the_same_trees_sooner(bench):
    found = agents.latency(bench, TreeShape(2, 2, 1))
    assert found["speedup"] > 1.5 and found["calls"] > 8
