"""What the report says of tasks without pictures, of rewards and metrics that are 0, and of thoughts in the prompt."""

import pytest
import report_cases as cases
from page_measures import measured
from report_page import page_of

pytestmark = pytest.mark.slow
pytest_plugins = ["browser"]

WIDTHS = [1280, 390]
QUESTION = "Anna has 20 apples and buys 20 more at the market on Tuesday. How many apples does she have?"


def sums(count: int, accuracy: float = 1.0) -> list[dict]:
    plain = {"question_type": "math-reasoning", "answer": "40", "prediction": "43", "image_size": None}
    plain |= {"completion": "<think>20 + 23</think><answer>43</answer>"}
    plain |= {"accuracy": accuracy, "record": {"question": QUESTION, "images": []}}
    return [cases.prediction(i, id=f"sum-{i}", **plain) for i in range(count)]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Address of an evaluation of a text task."""
    return page_of(cases.write_evaluation(tmp_path_factory.mktemp("words"), sums(3)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Address of a run with trees of every kind."""
    return page_of(cases.write_run(tmp_path_factory.mktemp("run"), steps=20))


@pytest.fixture(scope="module")
def zeros(tmp_path_factory):
    """Address of a run in which a reward function and two metrics are always 0, and of its evaluation."""
    folder = tmp_path_factory.mktemp("zeros")
    entries = [entry | {"rollout/cut_share": 0.0, "own/nothing": 0.0} for entry in cases.log_entries(20)]
    cases.write_lines(folder / "log.jsonl", entries)
    tree = cases.thought_answer_tree(0, "scene", None)
    for row in tree["rows"]:
        row["rewards"] |= {"format_reward": 0.0, "length_reward": 0.0, "polite_reward": 0.25}
    cases.write_lines(folder / "trees.jsonl", [tree])
    cases.write_evaluation(folder, sums(2, accuracy=0.0))
    text = (folder / "metrics.json").read_text()
    (folder / "metrics.json").write_text(text.replace('"dfd_px": 12.25', '"dfd_px": 0.0').replace("0.41", "0.0"))
    return page_of(folder)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_a_card_of_a_text_task_has_question_prediction_and_truth(open_page, words, width, dark):
    page = open_page(words, width, dark)
    said = page.locator(".item").first.inner_text()
    assert all(part in said for part in (QUESTION[:40], "prediction", "43", "true answer", "40"))
    assert page.locator(".item .stage").count() == 0
    assert measured(page, "layoutFaults") == []
    assert measured(page, "leastContrast")["ratio"] >= 4.5


def test_nothing_speaks_of_pictures_or_paths_where_there_are_none(open_page, words):
    page = open_page(words)
    page.locator(".item").first.click()
    gallery, detail = page.locator("#gallery").inner_text(), page.locator("#detail").inner_text()
    for word in ("picture", "path", "scale", "pixels"):
        assert word not in gallery and word not in detail
    assert "Prediction\n43" in detail and "True answer\n40" in detail


def test_the_legend_speaks_of_what_is_drawn(open_page, tmp_path):
    page = open_page(page_of(cases.write_evaluation(tmp_path, [*cases.every_shape(tmp_path), *sums(1)])))
    legend, tasks = page.locator("#legend"), page.locator(".filters select").first
    assert "a path starts at its dot" in legend.inner_text()
    tasks.select_option("affordance-sharerobot")
    assert "in the original picture" in legend.inner_text() and "path" not in legend.inner_text()
    tasks.select_option("math-reasoning")
    assert legend.inner_text() == ""


def test_a_picture_without_drawings_stands_above_prediction_and_truth(open_page, tmp_path):
    image = cases.picture(tmp_path / "a.png")
    read = cases.prediction(0, image, question_type="ocr-vqa", answer="STOP", prediction="SHOP")
    page = open_page(page_of(cases.write_evaluation(tmp_path, [read])))
    item = page.locator(".item")
    assert item.locator("img").count() == 1
    assert "SHOP" in item.inner_text() and "STOP" in item.inner_text()
    assert page.locator("#legend").inner_text() == ""


def test_metrics_that_are_always_0_share_a_line(open_page, zeros):
    page = open_page(zeros)
    assert "Cut short" not in page.locator("#curves .chart h3").all_inner_texts()
    folded = page.locator("#zero-metrics")
    assert "rollout/cut_share" not in folded.inner_text()
    folded.locator("summary").click()
    assert "own/nothing" in folded.inner_text() and "rollout/cut_share" in folded.inner_text()
    page.locator("#other-metrics > summary").click()
    assert "own/nothing" not in page.locator("#other-metrics h3").all_inner_texts()
    assert page.locator("#metrics tbody td:first-child").all_inner_texts() == ["accuracy", "n"]
    page.locator("#zero-values summary").click()
    assert "dfd_px" in page.locator("#zero-values").inner_text()


def test_reward_functions_that_gave_only_0_have_no_column(open_page, zeros):
    page = open_page(zeros)
    assert page.locator(".reward-head").all_inner_texts() == ["accuracy", "polite", "reward", "adv."]
    assert "0 for every leaf: format, length" in page.locator(".ask").inner_text()
    page.locator(".node[data-node='4']").click()
    facts = page.locator("#node-detail .facts-row > span").all_inner_texts()
    assert "format, length 0" in facts and "polite 0.250" in facts


def test_metrics_of_two_evaluations_are_in_view_on_a_phone(open_page, tmp_path):
    for name in ("before", "after"):
        cases.write_evaluation(tmp_path / name, sums(1))
    page = open_page(page_of(tmp_path), 390)
    assert page.locator("#metrics .section-head p").inner_text() == "trajectory-sharerobot, with 95 % intervals"
    for cell in page.locator("#metrics tbody td").all():
        box = cell.bounding_box()
        assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize("prompt", ["scene-1", "deep"])
def test_rewards_are_in_view_on_a_phone_and_open_their_leaf(open_page, run, prompt):
    page = open_page(run, 390)
    page.locator(".prompt", has_text=prompt).click()
    assert page.locator(".reward-head").all_inner_texts() == ["reward", "adv."]
    for cell in page.locator(".reward-cell").all():
        box = cell.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    page.locator(".growth").evaluate("growth => { growth.scrollLeft = 60; }")
    last = page.locator(".reward-cell[data-column='reward']").last
    assert last.bounding_box()["x"] + last.bounding_box()["width"] <= 390
    last.click()
    assert "accuracy" in page.locator("#node-detail .facts-row").inner_text()
    node, rewards = page.locator(".node[aria-pressed=true]").bounding_box(), page.locator(".rewards").bounding_box()
    assert node["x"] >= 0 and node["x"] + node["width"] <= rewards["x"] + 1
    assert measured(page, "layoutFaults") == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("prompt", ["scene-1", "question-1", "deep"])
def test_every_node_opens_in_a_low_window_without_an_empty_value(open_page, run, width, prompt):
    page = open_page(run, width)
    page.set_viewport_size({"width": width, "height": 600})
    page.locator(".prompt", has_text=prompt).click()
    detail = page.locator("#node-detail")
    for i in range(page.locator(".node").count()):
        page.locator(f".node[data-node='{i}']").evaluate("node => node.click()")
        said, box = detail.inner_text(), detail.bounding_box()
        assert not [word for word in ("null", "undefined", "NaN") if word in said], said
        assert box["y"] >= 0 and box["y"] + box["height"] <= 601
    assert page.said == []


def test_a_turn_whose_header_opens_a_thought_is_shown_with_its_tag(open_page, tmp_path):
    tree = cases.agent_tree(0, "agent") | {"opened": "<think>"}
    tree["nodes"][1]["text"] += "<|im_start|>assistant\n<think>"
    cases.write_lines(tmp_path / "trees.jsonl", [tree])
    page = open_page(page_of(tmp_path))
    texts = [page.locator(f".node[data-node='{i}'] .said").text_content() for i in (0, 2, 4, 5)]
    assert [text.startswith("<think>") for text in texts] == [True, True, False, True]


def opened_tree(step: int) -> dict:
    """A tree of a model whose chat template ends with the tag of the thought."""
    tree = cases.thought_answer_tree(step, "opened", None) | {"opened": "<think>\n"}
    for node in tree["nodes"][:4]:
        node["text"] = node["text"].removeprefix("<think>")
        node["tokens"] = [node["text"]]
    return tree


def test_a_thought_that_the_prompt_opens_is_shown_with_its_tag(open_page, tmp_path):
    cases.write_lines(tmp_path / "trees.jsonl", [opened_tree(0)])
    page = open_page(page_of(tmp_path))
    assert page.locator(".node[data-node='0'] .said").text_content().startswith("<think>\nGripper")
    page.locator(".node[data-node='0']").click()
    detail = page.locator("#node-detail")
    assert detail.locator(".before").text_content() == "<think>\n"
    assert detail.locator("span.t").all_text_contents() == opened_tree(0)["nodes"][0]["tokens"]
    page.locator(".node[data-node='4']").click()
    assert detail.locator(".before").text_content().startswith("<think>\nGripper at")
