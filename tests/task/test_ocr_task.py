"""The OCR task: ANLS with several references, exact and relaxed matches, case."""

import random

import pytest
from task_cases import DEGENERATE, metrics, prediction, said, scored

from task.ocr_vqa import MAX_CHARS, accuracy_reward, anls, edit_distance, exact_match, references, relaxed_match

NAME = "ocr-vqa"


@pytest.mark.parametrize(
    ("answer", "wanted", "similarity", "exact"),
    [
        ("10:30am", ["10:30 AM"], 0.875, False),
        ("Black.", ["black"], 0.8333, True),
        ("Black.", ["black"] * 10, 0.8333, True),
        ("coca cola", ["pepsi", "Coca-Cola"], 0.8889, False),
        ("  Garden\n PHLOX ", "garden phlox", 1.0, True),
        ("", ["garden phlox"], 0.0, False),
        ("rose or garden phlox or tulip", "garden phlox", 0.0, False),
        ("A", "A", 1.0, True),
        ("B", "A", 0.0, False),
        ("", "A", 0.0, False),
        ("7", "17", 0.0, False),  # half of it: at the threshold
        ("17", "17", 1.0, True),
        ("the", "The", 1.0, True),
        ("...", ["..."], 1.0, True),
        ("...", ["black"], 0.0, False),
        ("-5", "5", 0.0, False),
        (".5", "5", 0.0, False),
        ("(5).", "5", 0.0, True),
        ("Ｃａｆｅ\u0301", ["café"], 1.0, True),
        (12, "12", 1.0, True),
        ("\u22125", "-5", 1.0, True),
        ("2012\u20132013", "2012-2013", 1.0, True),
        ("It\u2019s", "it's", 1.0, True),
        ("\u201cblack\u201d", "black", 0.7143, True),
        ("\u200fblack\u200b", "black", 1.0, True),
        ("10\u00b2", "102", 0.75, False),
        ("10\u00b2", "10^2", 1.0, True),
        ("10\u207b\u00b3", "10-3", 0.8, False),
        ("10\u2082", "102", 0.75, False),
        ("1\u00bd", "11/2", 0.8, False),
        ("1\u00bd", "1 1/2", 1.0, True),
        ("CO\u2082", "CO2", 1.0, True),
    ],
)
def test_known_values(answer, wanted, similarity, exact):
    form, score, logged = scored(NAME, said(answer), wanted)
    assert score == pytest.approx(similarity, abs=1e-4) and logged["exact"] == int(exact)
    assert form == float(answer != "") and logged["parse_fail"] == int(answer == "")


def test_a_plain_text_is_one_reference():
    assert references("black") == ["black"] and references(12) == ["12"] and references(["a", 1]) == ["a", "1"]
    assert scored(NAME, said("b"), "black")[1] == 0.0  # not a reference a letter
    for wrong in ([], "", [" "], ["a", ""], {"a": 1}, ["a", None], [["a"]]):
        with pytest.raises(ValueError, match="record r7: answer"):
            accuracy_reward(said("a"), wrong, id="r7")
    assert accuracy_reward(said("a"), None) is None


VOTES = ["stop"] * 8 + ["unanswerable"]


@pytest.mark.parametrize(
    ("answer", "score", "soft", "exact"),
    [
        ("Stop.", 0.8, 1.0, 1),
        ("stop", 1.0, 1.0, 1),
        ("stopp", 0.8, 0.0, 0),
        ("unanswerable", 1 / 3, 1 / 3, 0),
        ("unanswerable.", 1 / 3 * 12 / 13, 1 / 3, 0),
        ("go", 0.0, 0.0, 0),
    ],
)
def test_an_answer_of_one_annotator_is_no_full_reference(answer, score, soft, exact):
    _, found, logged = scored(NAME, said(answer), VOTES)
    assert found == pytest.approx(score)
    assert logged["soft_accuracy"] == pytest.approx(soft) and logged["exact"] == logged["relaxed"] == exact
    measured = metrics(NAME, prediction(NAME, said(answer), VOTES), prediction(NAME, said("stop"), VOTES))
    assert measured["soft_accuracy"] == pytest.approx((soft + 1) / 2) and measured["exact"] == (exact + 1) / 2


def test_how_many_annotators_agree():
    votes = ["7"] * 5 + ["7."] + ["8"] * 2 + ["100", "nothing"]
    assert scored(NAME, said("8"), votes)[1] == pytest.approx(2 / 3)
    assert relaxed_match("7", votes) and not relaxed_match("101", votes)
    # Fewer than three alike: references of which any will do, as DocVQA's, where a spelling may stand twice.
    assert scored(NAME, said("T.F. Riehl"), ["T.F. Riehl", "T.F. Riehl", "Riehl"])[1] == 1.0
    assert scored(NAME, said("Riehl"), ["T.F. Riehl", "T.F. Riehl", "Riehl"])[1] == 1.0


def test_case_counts_where_the_record_says_so():
    assert scored(NAME, said("BLACK"), ["black"])[1] == 1.0
    _, score, logged = scored(NAME, said("BLACK"), ["black"], case_sensitive=True)
    assert score == 0.0 and logged["exact"] == 0
    assert scored(NAME, said("Black"), ["black"], case_sensitive=True)[1] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("answer", "wanted", "relaxed"),
    [
        ("104", "100", True),
        ("105", "100", True),
        ("106", "100", False),
        ("94", "100", False),
        ("1,040", "1000", True),
        ("5.2%", "5%", True),
        ("$ 4.9", "5", True),
        ("0", "0", True),
        ("0.01", "0", False),
        ("-100", "100", False),
        ("1,0,4", "104", False),
        ("black", "black", True),
        ("100 or 104", "100", False),
        ("9" * 1000, "9", False),
    ],
)
def test_relaxed_match_allows_five_percent(answer, wanted, relaxed):
    assert relaxed_match(answer, [wanted]) == relaxed


def test_edit_distance_is_the_definition():
    draw = random.Random(4)
    for _ in range(200):
        a, b = ("".join(draw.choices("abc", k=draw.randint(0, 90))) for _ in range(2))
        assert edit_distance(a, b) == edit_distance(b, a) == table_distance(a, b)
    assert edit_distance("", "abc") == edit_distance("abc", "") == 3 and edit_distance("", "") == 0


def table_distance(a, b):
    """The textbook table, row by row."""
    above = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
        above = row
    return above[-1]


def test_long_answers():
    assert scored(NAME, said("a" * MAX_CHARS), "a" * MAX_CHARS)[:2] == (1.0, 1.0)
    form, score, logged = scored(NAME, said("a" * (MAX_CHARS + 1)), "a" * MAX_CHARS)
    assert (form, score, logged["parse_fail"]) == (0.0, 0.0, 1)


@pytest.mark.parametrize("text", DEGENERATE)
def test_degenerate_completions_score_zero(text):
    assert scored(NAME, text, ["I do not know"])[:2] == (0.0, 0.0)


def test_measures_agree_with_each_other():
    assert anls("x", ["y", "x"]) == 1.0 and exact_match("x", ["y", "x"]) and relaxed_match("x", ["y", "x"])


def test_metrics():
    rows = [
        prediction(NAME, said("10:30am"), ["10:30 AM"]),
        prediction(NAME, said("black."), "Black"),
        prediction(NAME, said("104"), "100"),
        prediction(NAME, said("BLACK"), "black", case_sensitive=True),
        prediction(NAME, "no", "black"),
        prediction(NAME, None, "black"),
    ]
    found = metrics(NAME, *rows)
    assert found["anls"] == pytest.approx((0.875 + 5 / 6 + 2 / 3) / 5)
    assert (found["exact"], found["relaxed"], found["parse_failure_rate"]) == (0.2, 0.4, 0.2)
    assert metrics(NAME) == metrics(NAME, rows[-1]) == {}
