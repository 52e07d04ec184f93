"""The two examples of docs/methods.md do what the page says."""

import re

import pytest
from paths import ROOT
from scripted_growth import ScriptedEngine

from trainer.methods import METHODS


@pytest.fixture
def examples():
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    found = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, found)
    return found


def test_the_table_names_every_method():
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(METHODS)


def test_the_estimator(examples):
    values = examples["best_of"]([1, 3, 2, None, float("nan")], [0, 0, 1, 1, 2])
    assert values.tolist() == [-2, 0, 0, 0, 0]


def test_the_policy(examples):
    policy = examples["OpeningPolicy"](openings=3, opening_tokens=2, max_tokens=5)
    (tree,) = ScriptedEngine(lambda path: {1: 0.5, 2: 0.5}).grow(policy, ["p"])
    assert policy.leaves == len(tree.leaves()) == 6
    assert {len(tree.tokens(leaf)) for leaf in tree.leaves()} == {5}
