"""Two runs side by side on the same records: evaluations, or trees."""

import re

import pytest
import report_cases as cases
from page_measures import measured
from report_page import page_of

pytestmark = pytest.mark.slow
pytest_plugins = ["browser"]

SCORES = {"a": [0.5, 0.5, 0.5, 0.5, None], "b": [0.5, 0.75, 0.125, 1.0, 1.0]}
CHANGES = {"item-00003": "+0.50", "item-00002": "−0.38", "item-00001": "+0.25", "item-00000": "0.00", "item-00004": "–"}


def items(scores, image):
    words = {"question_type": "math-reasoning", "answer": "40", "image_size": None}
    found = [cases.prediction(i, image, accuracy=score) for i, score in enumerate(scores)]
    found[3] |= words | {"prediction": f"{10 * scores[3]:.0f}", "record": {"question": "How many?", "images": []}}
    return found


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    image = cases.picture(folder / "a.png")
    for name, scores in SCORES.items():
        more = [
            cases.prediction(7, id=f"only-{name}"),
            cases.prediction(8, id="moved", answer=[[ord(name), 1], [2, 2]]),
        ]
        cases.write_run(folder / name / "train", steps=40)
        cases.write_evaluation(folder / name / "eval", [*items(scores, image), *more])
    return page_of(folder / "a", folder / "b")


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """Two runs without evaluations; the right one drew other prompts too."""
    folder = tmp_path_factory.mktemp("tree-pairs")
    image = cases.picture(folder / "a.png")
    for name, steps in (("a", (0, 20)), ("b", (10,))):
        found = [cases.thought_answer_tree(step, "scene", image, seed=steps[0]) for step in steps]
        found += [cases.agent_tree(steps[-1], "question"), cases.agent_tree(0, f"only-{name}")]
        cases.write_lines(folder / name / "trees.jsonl", found)
    return page_of(folder / "a", folder / "b")


def ids(page) -> list[str]:
    return [text.split(",")[0] for text in page.locator(".record-pair .meta > span").all_inner_texts()]


def order(page, label: str) -> None:
    page.locator("#compare").get_by_label("Order of records").select_option(label=label)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_a_record_stands_beside_itself(open_page, evaluations, width, dark):
    page = open_page(evaluations, width, dark)
    changes = page.locator(".record-pair .change").all_inner_texts()
    assert dict(zip(ids(page), changes, strict=True)) == CHANGES
    assert ids(page) == list(CHANGES), "the largest change first, those without one last"
    first = page.locator(".record-pair").first
    left, right = (side.bounding_box() for side in first.locator(".side").all())
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]
    assert [side.split("\n")[0] for side in first.locator(".side").all_inner_texts()] == ["a/eval", "b/eval"]
    assert "prediction 5" in first.locator(".side").first.inner_text()
    assert "prediction 10" in first.locator(".side").last.inner_text()
    assert "true answer 40" in first.inner_text() and first.locator(".stage").count() == 0
    assert page.locator(".record-pair").nth(1).locator("g.predicted polyline.shape").count() == 2
    assert measured(page, "layoutFaults") == []
    assert measured(page, "leastContrast")["ratio"] >= 4.5
    assert page.said == []


def test_what_is_compared_and_what_is_left_out_is_said(open_page, evaluations):
    said = open_page(evaluations).locator("#compare").inner_text()
    assert "5 records, mean 0.500 and 0.594: right better on 2, worse on 1, equal on 1" in said
    assert "1 record only on the left, 1 only on the right" in said
    assert "1 record left out: the same id, but another task, question or true answer" in said


def test_records_are_ordered_and_searched(open_page, evaluations):
    page = open_page(evaluations)
    order(page, "right worse first")
    assert ids(page) == ["item-00002", "item-00000", "item-00001", "item-00003", "item-00004"]
    order(page, "right better first")
    assert ids(page) == ["item-00003", "item-00001", "item-00000", "item-00002", "item-00004"]
    order(page, "as in the data")
    assert ids(page) == sorted(CHANGES)
    page.locator("#compare").get_by_placeholder("question, answer or id").fill("CONE 2")
    assert ids(page) == ["item-00002"]


def test_a_side_opens_its_own_record(open_page, evaluations):
    page = open_page(evaluations)
    page.locator(".record-pair").first.locator(".side").last.get_by_role("button", name="Open").click()
    assert "item-00003" in page.locator("#detail").inner_text()
    assert "Prediction\n10" in page.locator("#detail").inner_text()


def test_sides_are_chosen_among_those_of_one_kind(open_page, evaluations):
    page = open_page(evaluations)
    label = "#compare label"
    left, right = (page.locator(label, has_text=re.compile(f"^{side}")).locator("select") for side in ("Left", "Right"))
    left.select_option("b/eval")
    assert right.locator("option").all_inner_texts() == ["a/eval"]
    assert page.locator(".record-pair .change").first.inner_text() == "−0.50"
    left.select_option("a/train (trees)")
    assert right.input_value() == "b/train (trees)"
    assert ids(page) == ["scene-1", "question-1", "deep"]


@pytest.mark.parametrize("width", [1280, 390])
def test_runs_without_evaluations_are_compared_by_the_newest_trees_of_a_prompt(open_page, trees, width):
    page = open_page(trees, width)
    assert sorted(ids(page)) == ["question", "scene"]
    scene = page.locator(".record-pair", has_text="scene")
    rows = [cases.thought_answer_tree(step, "scene", None, seed=seed)["rows"] for step, seed in ((20, 0), (10, 10))]
    means = [sum(row["reward"] for row in found) / len(found) for found in rows]
    for side, step, value in zip(scene.locator(".side").all(), (21, 11), means, strict=True):
        said = side.inner_text()
        assert f"step {step}" in said and f"mean reward {value:.3f}" in said and "accuracy" in said
        assert side.locator("polyline.shape").count() == 12
    change = f"{means[1] - means[0]:+.2f}".replace("-", "−")
    assert scene.locator(".change").inner_text() == change
    assert measured(page, "layoutFaults") == []
    scene.locator(".side").first.get_by_role("button", name="Open").click()
    page.locator("output", has_text="step 21").wait_for()
    assert page.locator(".prompt[aria-pressed=true]").inner_text().startswith("scene")
    assert page.said == []


def test_one_run_is_compared_with_nothing(open_page, tmp_path):
    page = open_page(page_of(cases.write_run(tmp_path)))
    assert not page.locator("#compare").is_visible()
    assert "Side by side" not in page.locator("nav").inner_text()
