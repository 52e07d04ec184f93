"""Reports in a real browser: clicked, filtered, measured, photographed."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import report_cases as cases
from page_measures import measured, wait_until
from paths import ROOT
from PIL import Image
from trainer_cases import vlm_trainer

from task.rewards.router import task_rewards
from task.task_loader import load_tasks

pytestmark = pytest.mark.slow
pytest_plugins = ["browser"]

LEAST_CONTRAST = 4.5  # WCAG AA
MOST_SECONDS = 3.0  # until a page of 2,000 items is drawn


def report(*folders) -> str:
    """Address of the report of some folders."""
    output = folders[0] / "report.html"
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), *map(str, folders), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return output.as_uri()


@pytest.fixture(scope="module")
def shots(tmp_path_factory):
    """Where screenshots go: pytest's folder of the run, or the one that SCREENSHOTS names."""
    named = os.environ.get("SCREENSHOTS")
    return Path(named) if named else tmp_path_factory.mktemp("screenshots")


@pytest.fixture(scope="module")
def run_report(tmp_path_factory):
    """A run with trees, beside an evaluation before and one after it."""
    folder = tmp_path_factory.mktemp("report")
    cases.write_run(folder / "train")
    image = cases.picture(folder / "pictures" / "a.png")
    worse = [cases.prediction(i, image, accuracy=0.1) for i in range(40)]
    cases.write_evaluation(folder / "before", worse)
    cases.write_evaluation(folder / "after", [cases.prediction(i, image) for i in range(40)])
    for file in (folder / "before").iterdir():
        cases.set_age(file, 500)
    return report(folder)


@pytest.fixture(scope="module")
def shapes_report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    return report(cases.write_evaluation(folder, cases.every_shape(folder)))


def filter_of(page, label: str):
    """The choice of the gallery with this label."""
    return page.locator(".filters label", has_text=re.compile(f"^{label}")).locator("select")


def numbers(value: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?[\d.]+", value)]


class TestLayout:
    @pytest.mark.parametrize("width", [1280, 390])
    @pytest.mark.parametrize("dark", [False, True])
    def test_nothing_overlaps_or_is_cut_and_all_text_can_be_read(self, open_page, run_report, shots, width, dark):
        page = open_page(run_report, width, dark)
        page.locator("#other-metrics > summary").click()
        page.locator(".node").nth(1).click()
        page.screenshot(path=shots / f"run-{width}-{'dark' if dark else 'light'}.png", full_page=True)
        assert measured(page, "layoutFaults") == []
        least = measured(page, "leastContrast")
        assert least["ratio"] >= LEAST_CONTRAST, least
        assert least["texts"] > 150
        page.locator(".item").first.click()
        assert measured(page, "leastContrast")["ratio"] >= LEAST_CONTRAST
        page.keyboard.press("Escape")
        filter_of(page, "View").select_option("table")
        assert measured(page, "layoutFaults") == []
        assert page.said == []

    @pytest.mark.parametrize("width", [1280, 390])
    def test_every_kind_of_item_fits_its_card(self, open_page, shapes_report, shots, width):
        page = open_page(shapes_report, width)
        page.screenshot(path=shots / f"shapes-{width}.png", full_page=True)
        assert measured(page, "layoutFaults") == []
        for stage in page.locator(".item .stage").all():
            inside, frame = stage.bounding_box(), stage.locator("> *").bounding_box()
            assert frame["width"] <= inside["width"] + 1
            assert frame["height"] <= inside["height"] + 1

    def test_the_measures_see_planted_faults(self, open_page, run_report):
        page = open_page(run_report, 390)
        page.evaluate("""() => {
          const plant = (style, text) => {
            const p = document.body.appendChild(document.createElement('p'));
            p.textContent = text;
            p.style.cssText = style;
          };
          plant('position: absolute; top: 20px; left: 20px', 'covers the title');
          plant('width: 600px; white-space: nowrap', 'x'.repeat(120));
          plant('color: #999; background: #fff', 'pale');
          document.querySelector('.filters input[type=search]').style.minWidth = '500px';
        }""")
        faults = " ".join(measured(page, "layoutFaults"))
        assert "covers" in faults
        assert "sticks out: " in faults
        assert "sticks out of its card" in faults
        assert "the page is" in faults
        assert measured(page, "leastContrast")["text"].startswith("pale")

    def test_the_theme_button_changes_the_theme(self, open_page, run_report):
        page = open_page(run_report)
        colour = "() => getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(colour)
        page.locator("#theme").click()
        assert page.evaluate(colour) != light
        assert measured(page, "leastContrast")["ratio"] >= LEAST_CONTRAST
        page.locator("#theme").click()
        assert page.evaluate(colour) == light

    def test_the_page_follows_its_window(self, open_page, run_report):
        page = open_page(run_report, 1280)
        page.set_viewport_size({"width": 500, "height": 800})
        wait_until(page, "document.querySelector('.plot canvas').getBoundingClientRect().width < 500")
        assert measured(page, "layoutFaults") == []


class TestCurves:
    def test_every_metric_has_a_chart_and_the_spike_is_marked(self, open_page, run_report):
        page = open_page(run_report)
        titles = page.locator("#curves .chart h3").all_inner_texts()
        for wanted in (
            "Reward",
            "Reward by function",
            "Reliability ρ",
            "Lengths",
            "Gradient norm",
            "Tokens per prompt",
            "Speed",
        ):
            assert wanted in titles
        norm = page.locator("#curves .chart", has_text="Gradient norm")
        assert "1 spike: above 3 times the run's mean" in norm.inner_text()
        page.locator("#other-metrics > summary").click()
        page.locator("#other-metrics h3").first.wait_for()
        assert "trajectory-sharerobot/dfd" in page.locator("#other-metrics h3").all_inner_texts()
        drawn = page.evaluate("""() => [...document.querySelectorAll('.plot canvas')].every((canvas) => {
          const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          return pixels.some((value) => value > 0);
        })""")
        assert drawn

    def test_the_pointer_reads_values_off_a_curve(self, open_page, run_report):
        page = open_page(run_report)
        chart = page.locator("#curves .chart").first
        last = chart.locator(".keys").inner_text()
        over = chart.locator(".u-over")
        over.hover(position={"x": 60, "y": 40})
        assert re.search(r"step \d+", chart.locator(".keys").inner_text())
        page.locator("h1").hover()
        assert chart.locator(".keys").inner_text() == last

    def test_smoothing_redraws(self, open_page, run_report):
        page = open_page(run_report)
        pixels = "() => document.querySelector('.plot canvas').toDataURL()"
        raw = page.evaluate(pixels)
        page.get_by_label("Smoothing").fill("0.9")
        assert page.evaluate(pixels) != raw
        assert page.said == []


class TestTables:
    def test_metrics_stand_side_by_side_with_their_change_and_sort_both_ways(self, open_page, run_report):
        page = open_page(run_report)
        heads = page.locator("#metrics th").all_inner_texts()
        assert [head.split("/")[-1] for head in heads] == ["Metric", "before", "after", "Change"]
        assert "0.350 to 0.480" in page.locator("#metrics tbody").inner_text()
        column = lambda: [float(x.split()[0]) for x in page.locator("#metrics tbody td:nth-child(2)").all_inner_texts()]  # noqa: E731
        head = page.locator("#metrics th").nth(1)
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "descending"
        assert column() == sorted(column(), reverse=True)
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        assert column() == sorted(column())

    def test_every_table_of_the_page_sorts_by_every_column(self, open_page, shapes_report):
        page = open_page(shapes_report)
        page.locator("#settings summary").click()
        filter_of(page, "View").select_option("table")
        tables = page.locator("table")
        assert tables.count() == 3
        for head in page.locator("th").all():
            head.locator("button").click()
            assert head.get_attribute("aria-sort") in ("ascending", "descending")
        scores = page.locator("#gallery tbody td:nth-child(4)")
        page.locator("#gallery th").nth(3).locator("button").click()
        assert scores.all_inner_texts()[-1] == "–"  # an item without a score stands last, either way
        page.locator("#gallery th").nth(3).locator("button").click()
        assert scores.all_inner_texts()[-1] == "–"


class TestGallery:
    def test_drawn_paths_lie_where_the_data_says(self, open_page, shapes_report):
        page = open_page(shapes_report)
        first = page.locator(".item").first
        assert first.locator("svg").get_attribute("viewBox") == "0 0 84 60"
        assert numbers(first.locator("g.true polyline.shape").get_attribute("points")) == [10, 10, 40, 30, 70, 50]
        assert numbers(first.locator("g.predicted polyline.shape").get_attribute("points")) == [13, 8, 43, 28, 73, 48]
        box = page.locator(".item", has_text="affordance").locator("g.true rect.shape")
        assert [float(box.get_attribute(name)) for name in ("x", "y", "width", "height")] == [10, 12, 30, 20]
        labels = page.locator(".item", has_text="object-detection").locator("g.predicted title").all_text_contents()
        assert labels == ["cup", "lamp"]
        dot = page.locator(".item", has_text="demand").locator("g.predicted circle")
        assert [float(dot.get_attribute("cx")), float(dot.get_attribute("cy"))] == [42, 30]

    @pytest.mark.parametrize("width", [1280, 390])
    def test_a_pixel_of_the_picture_is_a_pixel_of_the_drawing(self, open_page, shapes_report, width):
        """The way-point (40, 30) of a picture of 84 x 60 stands at that share of the picture on the screen."""
        page = open_page(shapes_report, width)
        first = page.locator(".item").first
        frame = first.locator("img").bounding_box()
        assert frame["width"] / frame["height"] == pytest.approx(84 / 60, rel=0.01)
        place = first.locator("g.true polyline.shape").evaluate(
            "line => { const p = line.points[1].matrixTransform(line.getScreenCTM()); return [p.x, p.y]; }"
        )
        assert place[0] == pytest.approx(frame["x"] + frame["width"] * 40 / 84, abs=0.6)
        assert place[1] == pytest.approx(frame["y"] + frame["height"] * 30 / 60, abs=0.6)

    def test_filters_narrow_the_items(self, open_page, shapes_report):
        page = open_page(shapes_report)
        found, cards = page.locator("#found"), page.locator(".item")
        assert found.inner_text().startswith("7 of 7 items")
        filter_of(page, "Status").select_option("parse_fail")
        assert (cards.count(), "lost" in cards.first.inner_text()) == (1, True)
        filter_of(page, "Status").select_option("")
        filter_of(page, "Task").select_option("object-detection")
        assert cards.count() == 1
        filter_of(page, "Task").select_option("")
        page.get_by_label("Lowest score", exact=True).fill("0.7")
        assert cards.count() == 2
        page.get_by_label("Lowest score", exact=True).fill("")
        page.get_by_placeholder("question, answer or id").fill("CONE 3")
        assert (cards.count(), "point" in cards.first.inner_text()) == (1, True)
        page.get_by_placeholder("question, answer or id").fill("no such thing")
        assert "No item fits" in page.locator("#results").inner_text()
        page.get_by_placeholder("question, answer or id").fill("")
        filter_of(page, "Order").select_option("worst")
        assert "lost" in cards.first.inner_text()
        assert page.said == []

    def test_cards_made_while_scrolling_move_nothing_that_stands_above(self, open_page, run_report):
        page = open_page(run_report)
        tree = page.locator("#trees")
        made, place = page.locator(".item").count(), tree.evaluate("section => section.offsetTop")
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        wait_until(page, f"document.querySelectorAll('.item').length > {made}")
        assert tree.evaluate("section => section.offsetTop") == place
        assert page.locator("main > section").last.get_attribute("id") == "gallery"

    def test_an_item_opens_and_the_arrow_keys_go_on(self, open_page, shapes_report):
        page = open_page(shapes_report)
        page.locator(".item").first.click()
        dialog = page.locator("#detail")
        assert "item-00000" in dialog.inner_text()
        assert "<think>a path</think>" in dialog.inner_text()
        page.keyboard.press("ArrowRight")
        assert "affordance-sharerobot" in dialog.inner_text()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        assert "item-00000" in dialog.inner_text()
        page.get_by_role("button", name="Close").click()
        assert not dialog.is_visible()

    def test_another_evaluation_can_be_chosen(self, open_page, run_report):
        page = open_page(run_report)
        assert "mean score 0.1" not in page.locator("#found").inner_text()
        chooser = filter_of(page, "Evaluation")
        name = next(text for text in chooser.locator("option").all_inner_texts() if text.endswith("before"))
        chooser.select_option(name)
        assert "mean score 0.100" in page.locator("#found").inner_text()


class TestTrees:
    def open_tree(self, open_page, address, prompt, **settings):
        page = open_page(address, **settings)
        page.locator(".prompt", has_text=prompt).click()
        return page

    def test_a_tree_is_drawn_as_it_was_sampled(self, open_page, run_report):
        page = self.open_tree(open_page, run_report, "scene-1")
        tree = cases.thought_answer_tree(80, "scene-1", "picture")
        nodes = page.locator(".node")
        assert nodes.count() == len(tree["nodes"]) == 16
        for i, node in enumerate(tree["nodes"]):
            drawn = page.locator(f".node[data-node='{i}']")
            assert ("positive" in drawn.get_attribute("class")) == (node["advantage"] > 0)
        heights = [page.locator(f".node[data-node='{i}']").bounding_box()["height"] for i in (0, 3, 4)]
        assert heights[0] > 3.5 * heights[2]
        assert heights[1] == heights[2]
        assert "unclosed" in page.locator(".node[data-node='3']").inner_text()

    def test_bands_are_as_wide_as_their_leaves(self, open_page, run_report):
        page = self.open_tree(open_page, run_report, "scene-1")
        bands = [
            (int(b.get_attribute("data-leaves")), float(b.get_attribute("stroke-width")))
            for b in page.locator(".band").all()
        ]
        assert {leaves for leaves, _ in bands} == {4, 1}
        narrow = next(width for leaves, width in bands if leaves == 1)
        assert all(width == pytest.approx(leaves * narrow) for leaves, width in bands)

    @pytest.mark.parametrize("prompt", ["scene-1", "question-1"])
    def test_a_fork_that_entropy_did_not_decide_shows_none(self, open_page, run_report, prompt):
        page = self.open_tree(open_page, run_report, prompt)
        assert (page.locator(".fork").count(), page.locator(".fork-label").count()) == (0, 0)

    def test_forks_that_entropy_decided_show_it(self, open_page, run_report):
        page = self.open_tree(open_page, run_report, "deep")
        nodes = cases.segment_tree(80, "deep")["nodes"]
        firsts = {}
        for node in nodes:
            firsts.setdefault(node["parent"], []).append(node["entropies"][0])
        decided = [found[0] for parent, found in sorted(firsts.items()) if parent >= 0 and len(found) > 1]
        assert decided
        assert [float(fork.get_attribute("data-entropy")) for fork in page.locator(".fork").all()] == decided

    def test_rewards_of_a_leaf_stand_in_its_line(self, open_page, run_report):
        page = self.open_tree(open_page, run_report, "scene-1")
        assert page.locator(".reward-head").all_inner_texts() == ["format", "accuracy", "reward", "adv."]
        rows = cases.thought_answer_tree(80, "scene-1", "picture")["rows"]
        shown = page.locator(".reward-cell[data-column='accuracy_reward']").all_inner_texts()
        assert shown == [f"{row['rewards']['accuracy_reward']:.2f}" for row in rows[:12]] + ["–"]
        leaf = page.locator(".node[data-node='4']").bounding_box()
        cell = page.locator(".reward-cell[data-column='reward']").first.bounding_box()
        assert leaf["y"] < cell["y"] + cell["height"] / 2 < leaf["y"] + leaf["height"]

    def test_a_node_opens_with_its_tokens_and_their_log_probabilities(self, open_page, run_report):
        page = self.open_tree(open_page, run_report, "scene-1")
        node = cases.thought_answer_tree(80, "scene-1", "picture")["nodes"][4]
        assert not page.locator("#node-detail").is_visible()
        page.locator(".node[data-node='4']").click()
        detail = page.locator("#node-detail")
        assert detail.locator("span.t").all_text_contents() == node["tokens"]
        assert detail.locator(".before").text_content().startswith("<think>Gripper at [39, 65]")
        detail.locator("span.t").nth(2).hover()
        tip = page.locator("#tip").inner_text()
        assert f"entropy {node['entropies'][2]:.2f} nats" in tip
        assert json.dumps(node["tokens"][2]) in tip
        page.locator(".node[data-node='4']").click()
        assert not detail.is_visible()

    @pytest.mark.parametrize("width", [1280, 390])
    def test_an_opened_node_is_in_the_window_and_says_what_it_knows(self, open_page, run_report, shots, width):
        page = self.open_tree(open_page, run_report, "scene-1", width=width)
        page.locator(".forest").evaluate("forest => scrollTo(0, forest.offsetTop)")
        page.locator(".node[data-node='4']").click()
        page.screenshot(path=shots / f"node-{width}.png")
        detail = page.locator("#node-detail")
        box = detail.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 900
        own = "detail => [...detail.childNodes].filter(n => n.nodeType === Node.TEXT_NODE).map(n => n.data)"
        assert detail.evaluate(own) == []
        assert "null" not in detail.inner_text() and "undefined" not in detail.inner_text()

    def test_answers_of_an_opened_thought_stand_out_on_the_picture(self, open_page, run_report):
        page = self.open_tree(open_page, run_report, "scene-1")
        groups = page.locator(".ask svg > g")
        assert groups.count() == 16
        assert page.locator(".ask svg > g.faint").count() == 0
        page.locator(".node[data-node='1']").click()
        assert page.locator(".ask svg > g:not(.faint)").count() == 4
        assert page.locator(".ask svg > g:not(.faint) polyline.shape").count() == 4

    def test_the_slider_goes_through_training(self, open_page, run_report):
        page = self.open_tree(open_page, run_report, "question-1")
        slider = page.get_by_label("Training step")
        assert page.locator("output").inner_text() == "step 81"
        slider.fill("0")
        assert page.locator("output").inner_text() == "step 1"
        page.get_by_label("Later step").click()
        assert page.locator("output").inner_text() == "step 21"
        slider.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.locator("output").inner_text() == "step 61"
        assert page.locator(".prompt[aria-pressed=true]").inner_text().startswith("question-1")
        assert page.said == []

    def test_steps_and_observations_of_an_agent(self, open_page, run_report, shots):
        page = self.open_tree(open_page, run_report, "question-1")
        page.locator("#trees").screenshot(path=shots / "agent.png")
        observed = page.locator(".node.observed")
        assert observed.count() == 2
        assert "failed, refused" in page.locator(".node.failed").inner_text()
        page.locator(".node[data-node='1']").click()
        sizes = "images => images.map(image => [image.naturalWidth, image.naturalHeight])"
        wait_until(page, "[...document.querySelectorAll('.seen, .seen-all img')].every(image => image.complete)")
        assert page.locator(".node .seen").evaluate_all(sizes) == [[112, 84]]
        assert page.locator("#node-detail .seen-all img").evaluate_all(sizes) == [[112, 84], [160, 40]]
        assert measured(page, "layoutFaults") == []
        assert page.said == []

    @pytest.mark.parametrize("width", [1280, 390])
    def test_a_deep_tree_scrolls_in_its_own_frame(self, open_page, run_report, width):
        page = self.open_tree(open_page, run_report, "deep", width=width)
        assert measured(page, "layoutFaults") == []
        page.locator(".node").last.scroll_into_view_if_needed()
        page.locator(".node").last.click()
        assert page.locator("#node-detail").is_visible()


class TestLargeAndHostile:
    def test_two_thousand_items_open_within_three_seconds(self, open_page, tmp_path):
        items = []
        for i in range(2000):
            file = tmp_path / "pictures" / f"{i}.jpg"
            file.parent.mkdir(exist_ok=True)
            Image.effect_noise((320, 240), 12).convert("RGB").save(file, quality=70)
            items.append(cases.prediction(i, str(file), image_size=[320, 240], processed_size=[640, 480]))
        address = report(cases.write_evaluation(tmp_path / "large", items))
        tries = []
        while not tries or (min(tries) >= MOST_SECONDS and len(tries) < 3):  # other work on the machine is no fault
            started = time.monotonic()
            page = open_page(address)
            tries.append(time.monotonic() - started)
        seconds = min(tries)
        print(f"2,000 items: {seconds:.2f} s, {(tmp_path / 'large' / 'report.html').stat().st_size / 2**20:.1f} MiB")
        assert seconds < MOST_SECONDS
        assert page.locator(".item").count() < 100
        while (made := page.locator(".item").count()) <= 100:
            page.evaluate("scrollTo(0, document.body.scrollHeight)")
            wait_until(page, f"document.querySelectorAll('.item').length > {made}")
        filtered = """input => {
          const started = performance.now();
          input.value = 'cone 1999';
          input.dispatchEvent(new Event('input'));
          return performance.now() - started;
        }"""
        search = page.get_by_placeholder("question, answer or id")
        assert min(search.evaluate(filtered) for _ in range(3)) < 500
        assert page.locator(".item").count() == 1
        natural = page.locator(".item img").evaluate("async img => { await img.decode(); return img.naturalWidth; }")
        assert natural > 100
        assert page.said == []

    @pytest.mark.parametrize("width", [1280, 390])
    def test_hostile_content_is_shown_as_text(self, open_page, tmp_path, shots, width):
        page = open_page(report(cases.write_hostile(tmp_path)), width)
        page.screenshot(path=shots / f"hostile-{width}.png", full_page=True)
        assert page.evaluate("window.broken") is None
        assert page.locator("script").count() == 4
        assert measured(page, "layoutFaults") == []
        cards = page.locator(".item")
        for i in range(cards.count()):
            cards.nth(i).click()
            page.keyboard.press("Escape")
        filter_of(page, "View").select_option("table")
        slider = page.get_by_label("Training step")
        for step in range(3):
            slider.fill(str(step))
            for node in page.locator(".node").all():
                node.click()
        slider.fill("0")
        page.locator(".node").first.click()
        page.locator("span.t").first.hover()
        assert "<script>" in page.locator("#tip").inner_text()
        assert page.evaluate("window.broken") is None
        assert page.said == []


class TestRealRun:
    @pytest.fixture(scope="class")
    def demo(self, tiny_vlm, tiny_model_dir, tmp_path_factory):
        """Address and trees of the report of two steps of training on the demo, and of an evaluation of four tasks."""
        folder = tmp_path_factory.mktemp("demo")
        settings = {"max_steps": 2, "think_num": 2, "answer_num": 2, "max_thought_length": 80, "max_answer_length": 80}
        rewards = task_rewards(load_tasks())
        trainer = vlm_trainer(
            tiny_vlm, folder / "train", rows=2, reward=rewards, log_trees="every:1", learning_rate=1e-4, **settings
        )
        trainer.train()
        families = ("trajectory", "detection", "affordance", "math")
        manifests = [f"metadata/demo/{family}_test.yaml" for family in families]
        command = [sys.executable, "scripts/eval/eval.py", "--model_name_or_path", str(tiny_model_dir), "--dataset"]
        command += [*manifests, "--output_dir", str(folder / "eval"), "--max_new_tokens", "120", "--batch_size", "64"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr[-2000:]
        trees = [json.loads(line) for line in (folder / "train" / "trees.jsonl").read_text().splitlines()]
        predictions = [json.loads(line) for line in (folder / "eval" / "predictions.jsonl").read_text().splitlines()]
        return report(folder), trees, predictions

    @pytest.mark.parametrize("width", [1280, 390])
    def test_it_shows_what_was_sampled_and_predicted(self, demo, open_page, shots, width):
        address, trees, predictions = demo
        page = open_page(address, width)
        last = next(tree for tree in trees if tree["step"] == 1)
        assert page.locator(".node").count() == len(last["nodes"])
        deepest = len(last["nodes"]) - 1
        page.locator(f".node[data-node='{deepest}']").click()
        assert page.locator("span.t").all_text_contents() == last["nodes"][deepest]["tokens"]
        assert page.locator("#found").inner_text().startswith(f"{len(predictions)} of {len(predictions)} items")
        assert filter_of(page, "Task").locator("option").count() == 5
        filter_of(page, "Task").select_option("trajectory-sharerobot")
        drawn = page.locator(".item").first.locator("g.true polyline.shape").get_attribute("points")
        wanted = next(p for p in predictions if p["question_type"] == "trajectory-sharerobot")["answer"]
        assert numbers(drawn) == pytest.approx([x for point in wanted for x in point], abs=0.01)
        filter_of(page, "Task").select_option("")
        page.screenshot(path=shots / f"demo-{width}.png", full_page=True)
        assert measured(page, "layoutFaults") == []
        assert measured(page, "leastContrast")["ratio"] >= LEAST_CONTRAST
        assert page.said == []
