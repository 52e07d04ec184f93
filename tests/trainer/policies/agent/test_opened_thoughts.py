"""Agents whose chat template opens the thought of a turn itself."""

import copy

import pytest
from agent_cases import TOOL_TEMPLATE, ChatEcho, Echo, ScriptedAgent, one_call, policy_of, turns

HEADER = "{{ '<|im_start|>assistant\\n' }}"


@pytest.fixture
def thinker(tiny_text):
    """The random text model with a template that ends every header with an opened thought."""
    module, model, tokenizer = tiny_text
    module, tokenizer = copy.copy(module), copy.deepcopy(tokenizer)
    tokenizer.chat_template = TOOL_TEMPLATE.replace(HEADER, HEADER + "{{ '<think>\\n' }}")
    assert tokenizer.chat_template != TOOL_TEMPLATE
    module.processor = tokenizer
    return module, model, tokenizer


def grown(thinker, make_environment, *written):
    lengths = {"max_turn_length": 200, "max_observation_length": 200}
    policy = policy_of(make_environment, thinker, tree_num=1, expand_num=0, **lengths)
    (tree,) = ScriptedAgent(thinker[2], turns(*written)).grow(policy, ["a"])
    texts = [thinker[2].decode(node.token_ids) for node in tree.nodes]
    return policy, [(node.kind, text) for node, text in zip(tree.nodes, texts, strict=True)]


def test_tags_in_the_opened_thought_of_the_first_turn_are_text(thinker):
    first = "no <search>x</search></think><search>q</search>"
    policy, nodes = grown(thinker, Echo, first, "<search>r</search>", "<answer>a</answer>")
    assert ["found q" in text for kind, text in nodes if kind == "observation"] == [True, False]
    assert "found r" in nodes[3][1], "later turns have no header, so their thoughts are their own"
    inside = thinker[2]("no <search>x</search>", add_special_tokens=False)["input_ids"]
    assert policy.start().goes_on(inside) and not policy._segment(9).goes_on(inside)


def test_every_turn_of_tool_calls_begins_inside_a_thought(thinker):
    draft = "perhaps " + one_call(arguments='{"query": "x"}') + "</think>"
    _, nodes = grown(thinker, ChatEcho, draft + one_call(), draft + one_call(), "done</think><answer>a</answer>")
    seen = [text for kind, text in nodes if kind == "observation"]
    assert [text.count("found q") for text in seen] == [1, 1] and not any("found x" in text for text in seen)
    assert all(text.endswith("<|im_start|>assistant\n<think>\n") for text in seen)
