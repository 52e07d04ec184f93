"""The picture of a rollout tree: valid XML with a box per thought and per answer, and the committed file is current."""

import xml.etree.ElementTree as ET
from collections import Counter

import pytest
from paths import ROOT

from scripts.demo.draw_tree import Answer, Rollout, Thought, draw, grow

SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg: str) -> Counter:
    return Counter(rect.get("class") for rect in ET.fromstring(svg).iter(f"{SVG}rect"))


@pytest.fixture
def by_hand() -> Rollout:
    """A prompt of 10 tokens, thoughts of 5 and 7, three answers of 2 tokens each."""
    answers = [Answer("<answer>1 & 2</answer>", 2, reward) for reward in (0.0, 0.5, 1.0)]
    return Rollout("Which < is it?", 10, 4, [Thought("<think>a</think>", tokens, answers) for tokens in (5, 7)])


def test_tokens_of_a_rollout_as_tree_and_as_rows(by_hand):
    assert by_hand.tree_tokens() == 10 + 5 + 7 + 6 * 2
    assert by_hand.row_tokens() == 3 * (10 + 5 + 2) + 3 * (10 + 7 + 2)


def test_the_tree_has_every_box_once_and_the_rows_repeat_them(by_hand):
    svg = draw(by_hand)
    # Once in the tree and once, not faded, in the rows; the answers are all their own.
    assert boxes(svg) == {
        "card": 1,
        "prompt": 2,
        "prompt again": 5,
        "thought": 2 + 2,
        "thought again": 4,
        "answer": 6 + 6,
    }
    assert "34 tokens" in svg and "108 tokens, 3.2 times as many" in svg


def test_boxes_are_as_wide_as_their_tokens(by_hand):
    rects = ET.fromstring(draw(by_hand)).iter(f"{SVG}rect")
    widths = {name: {float(r.get("width")) for r in found} for name, found in grouped(rects).items()}
    unit = widths["answer"].pop() / 2
    assert widths["thought"] == {5 * unit, 7 * unit}
    assert widths["prompt"] == {10 * unit}


def grouped(rects) -> dict[str, list]:
    found = {}
    for rect in rects:
        found.setdefault(rect.get("class"), []).append(rect)
    return found


def test_the_committed_picture_is_what_the_script_draws(one_thread):
    svg = (ROOT / "docs" / "tree.svg").read_text(encoding="utf-8")
    assert svg == draw(grow(think_num=4, answer_num=4, record=0, seed=1))
    drawn = boxes(svg)
    assert (drawn["thought"], drawn["answer"]) == (2 * 4, 2 * 16)


def test_it_needs_nothing_from_elsewhere():
    svg = (ROOT / "docs" / "tree.svg").read_text(encoding="utf-8").replace(SVG.strip("{}"), "")
    assert "http" not in svg and "url(" not in svg and "@import" not in svg
