"""scripts/report.py without a browser: what is found, read, moved to the original picture, and put into one file."""

import base64
import hashlib
import io
import json
import math
import re
import subprocess
import sys
import time

import pytest
import report_cases as cases
from paths import ROOT
from PIL import Image

sys.path.insert(0, str(ROOT / "scripts"))

from report.gallery import items_of, read_predictions
from report.history import checkpoint_series, progress, read_history, series, spikes, thinned, tokens_per_second
from report.lines import number, read_lines, text
from report.page import as_script_data, page_content, render_page
from report.pictures import Pictures, Thumbnails
from report.shapes import shapes_in
from report.sources import find_sources
from report.tree_pages import read_trees, tree_items

from task.task_loader import load_tasks


@pytest.fixture(scope="module")
def tasks():
    return load_tasks()


def run_report(*arguments):
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))


class TestSources:
    def test_a_folder_of_training_and_evaluations_is_shown_in_the_order_they_were_made(self, tmp_path):
        cases.write_evaluation(tmp_path / "before", [cases.prediction(0)])
        cases.write_run(tmp_path / "train")
        cases.write_evaluation(tmp_path / "after", [cases.prediction(0)])
        for age, name in enumerate(("after", "train", "before")):
            for file in (tmp_path / name).glob("*.json*"):
                cases.set_age(file, 100 * age)
        (tmp_path / "train" / "checkpoint-5").mkdir()
        (tmp_path / "train" / "checkpoint-5" / "trainer_state.json").write_text("{}")
        found = find_sources([tmp_path])
        name = tmp_path.name
        assert [s.name for s in found] == [f"{name}/before", f"{name}/train", f"{name}/after"]
        assert [(s.is_run, s.is_evaluation) for s in found] == [(False, True), (True, False), (False, True)]

    def test_evaluations_of_checkpoints_stand_by_step(self, tmp_path):
        for step in (1000, 200, 30):
            folder = cases.write_evaluation(tmp_path / f"checkpoint-{step}", [cases.prediction(0)])
            for file in folder.iterdir():
                cases.set_age(file, 50)
        assert [s.folder.name for s in find_sources([tmp_path])] == [
            "checkpoint-30",
            "checkpoint-200",
            "checkpoint-1000",
        ]

    def test_two_folders_of_one_name_get_two_names(self, tmp_path):
        folders = [cases.write_run(tmp_path / place / "run") for place in "ab"]
        assert [s.name for s in find_sources(folders)] == ["run", "run (2)"]

    def test_nothing_to_show_is_said(self, tmp_path):
        with pytest.raises(ValueError, match="is not a folder"):
            find_sources([tmp_path / "none"])
        with pytest.raises(ValueError, match="has nothing to show"):
            find_sources([tmp_path])
        (found,) = find_sources([tmp_path], may_be_empty=True)
        assert found.is_run


class TestLines:
    def test_damage_is_counted_and_a_line_that_is_being_written_is_not(self, tmp_path):
        (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n\n[2]\nnull\nnot json\n\xff\n{"a": 2}\n{"a": 3')
        entries, faults = read_lines(tmp_path / "x.jsonl")
        assert (entries, faults) == ([{"a": 1}, {"a": 2}], 4)
        assert read_lines(tmp_path / "none.jsonl") == ([], 0)

    @pytest.mark.parametrize("value", [None, True, "1", math.nan, math.inf, [1], 10**400])
    def test_what_is_no_number_is_none(self, value):
        assert number(value) is None

    def test_long_text_is_cut_and_says_so(self):
        assert text("x" * 50, 10) == "xxxxxxxxxx ... (50 characters)"
        assert (text(None, 5), text({"a": 1}, 50), text("ab", 5)) == ("", '{"a": 1}', "ab")


class TestHistory:
    def test_the_log_of_a_run_that_trains_is_read(self, tmp_path):
        cases.write_lines(tmp_path / "log.jsonl", cases.log_entries(50))
        history, start = read_history(tmp_path)
        metrics = series(history)
        assert start["max_steps"] == 50
        assert metrics["reward"][0] == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
        assert "time" not in metrics
        assert metrics["tokens per second"][1] == pytest.approx([2000.0] * 9)

    def test_a_resumed_run_replaces_the_steps_it_went_over_again(self, tmp_path):
        entries = [{"step": s, "reward": float(s)} for s in (5, 10, 15)] + [{"step": 10, "reward": 0.5}]
        cases.write_lines(tmp_path / "log.jsonl", entries)
        assert series(read_history(tmp_path)[0])["reward"] == [[5, 10], [5.0, 0.5]]

    def test_an_older_run_has_the_state_of_its_newest_checkpoint(self, tmp_path):
        for step in (5, 100, 20):
            (tmp_path / f"checkpoint-{step}").mkdir()
            state = {"max_steps": 200, "log_history": [{"step": step, "loss": 1.0}]}
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
        history, start = read_history(tmp_path)
        assert [entry["step"] for entry in history] == [100]
        assert start["max_steps"] == 200

    def test_whichever_file_got_further_is_taken(self, tmp_path):
        cases.write_lines(tmp_path / "log.jsonl", [{"step": 5, "loss": 1.0}])
        (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 9, "loss": 2.0}]}))
        assert read_history(tmp_path)[0] == [{"step": 9, "loss": 2.0}]
        (tmp_path / "trainer_state.json").write_text('{"log_history": [{"st')  # being written
        assert read_history(tmp_path)[0] == [{"step": 5, "loss": 1.0}]

    def test_spikes_are_far_above_the_mean(self):
        entries = cases.log_entries(100)
        steps, values = series([e for e in entries if "step" in e])["grad_norm"]
        assert spikes([steps, values]) == [50]
        assert spikes([[1, 2], [1.0, 1.0]]) == spikes([[], []]) == spikes([[1], [0.0]]) == []

    def test_a_long_curve_keeps_its_peaks(self):
        steps = list(range(30_000))
        values = [math.sin(step / 900) for step in steps]
        values[17_111] = 9.0
        kept = thinned([steps, values])
        assert len(kept[0]) <= 2000
        assert kept[0] == sorted(set(kept[0]))
        assert (17_111, 9.0) in zip(*kept, strict=True)
        assert thinned([steps[:50], values[:50]]) == [steps[:50], values[:50]]

    def test_a_long_log_is_read_in_time(self, tmp_path):
        cases.write_lines(tmp_path / "log.jsonl", [{"step": s, "reward": 0.5} for s in range(60_000)])
        started = time.process_time()
        assert len(read_history(tmp_path)[0]) == 60_000
        assert time.process_time() - started < 5

    def test_time_left_comes_from_the_latest_steps(self):
        history = [{"step": s, "step_time": 9.0 if s < 50 else 2.0} for s in range(0, 100, 5)]
        assert progress(history, {"max_steps": 195})["seconds_left"] == 200.0
        assert progress(history, {"max_steps": 195, "ended": 1.0})["seconds_left"] is None
        assert progress([], {}) == {"step": 0.0, "max_steps": None, "seconds_left": None, "ended": False}

    def test_rates_need_time_and_tokens(self):
        assert tokens_per_second([{"step": 1, "num_tokens": 10}, {"step": 2, "num_tokens": 20, "time": 3.0}]) == [
            [],
            [],
        ]

    def test_checkpoints_become_curves(self, tmp_path):
        steps = [{"step": s, "metrics": {"t": {"accuracy": s / 10}}, "intervals": {}} for s in (1, 2)]
        (tmp_path / "checkpoints.json").write_text(json.dumps({"steps": [*steps, {"metrics": 3}, None]}))
        assert checkpoint_series(tmp_path) == {"eval_t/accuracy": [[1, 2], [0.1, 0.2]]}
        assert find_sources([tmp_path])[0].is_run


class TestShapes:
    @pytest.mark.parametrize(
        ("value", "kind", "at"),
        [
            ([[0, 0], [10, 20]], "path", [0, 0, 10, 20]),
            ([[3, 4]], "point", [3, 4]),
            ([3, 4], "point", [3, 4]),
            ([1, 2, 3, 4], "box", [1, 2, 3, 4]),
            ({"x": 1, "y": 2, "width": 10, "height": 20}, "box", [1, 2, 11, 22]),
            ({"bbox_2d": [1, 2, 3, 4], "label": "cup"}, "box", [1, 2, 3, 4]),
            ({"point_2d": [1, 2]}, "point", [1, 2]),
            ([[1, 2, 3, 4]], "box", [1, 2, 3, 4]),
        ],
    )
    def test_every_form_of_an_answer(self, value, kind, at):
        (shape,) = shapes_in(value, "original", (100, 100), (200, 200))
        assert (shape["kind"], shape["at"]) == (kind, at)

    def test_lists_of_places_keep_their_labels(self):
        boxes = [{"bbox_2d": [1, 2, 3, 4], "label": "cup"}, {"bbox_2d": [5, 6, 7, 8]}, "no box"]
        assert [shape.get("label") for shape in shapes_in(boxes, "original", (9, 9))] == ["cup", None]

    def test_numbers_move_into_the_original_picture(self):
        assert shapes_in([[168, 120]], "processed", (84, 60), (168, 120))[0]["at"] == [84, 60]
        assert shapes_in([0, 0, 500, 500], "norm1000", (640, 480))[0]["at"] == [0, 0, 320, 240]

    @pytest.mark.parametrize(
        "value",
        [None, "A", 7, [], {}, [1], [[1, "x"]], [[math.nan, 1]], [[1e300, 1]], {"bbox_2d": None}, [True, False]],
    )
    def test_what_is_no_place_gives_no_shape(self, value):
        assert shapes_in(value, "processed", (84, 60), (168, 120)) == []

    def test_a_frame_without_its_picture_gives_no_shape(self):
        assert shapes_in([[1, 2], [3, 4]], "processed", (84, 60), None) == []
        assert shapes_in([[1, 2], [3, 4]], "none", (84, 60), (84, 60)) == []


class TestPictures:
    def test_a_thumbnail_is_upright_and_within_its_side(self, tmp_path):
        image = Image.new("RGB", (900, 600))
        exif = image.getexif()
        exif[0x0112] = 6  # lies on its side
        image.save(tmp_path / "a.jpg", exif=exif)
        url = Thumbnails().add(str(tmp_path / "a.jpg"), 300)
        with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as shown:
            assert shown.size == (200, 300)
            assert not shown.getexif()

    def test_a_picture_is_stored_once_and_cut_out_of_the_blob(self, tmp_path):
        paths = [cases.picture(tmp_path / f"{i}.png", colour=(i, 0, 0)) for i in range(3)]
        pictures = Pictures(Thumbnails(), expected=3)
        assert [pictures.add(path) for path in (*paths, paths[1])] == [0, 1, 2, 1]
        start, length = pictures.places[2]
        assert pictures.blob[start : start + length] == Thumbnails().add(paths[2], 560)

    def test_missing_and_too_many_are_counted(self, tmp_path):
        paths = [cases.picture(tmp_path / f"{i}.png", colour=(i, 9, 9)) for i in range(3)]
        pictures = Pictures(Thumbnails(), expected=3, budget=len(Thumbnails().add(paths[0], 560)) + 10)
        assert [pictures.add(path) for path in (*paths, "/no/such.png", None, 3, paths[2])] == [0] + [None] * 6
        assert (pictures.missing, pictures.over_budget) == (1, 2)


class TestItems:
    def test_truth_and_prediction_meet_in_the_original_picture(self, tmp_path, tasks):
        items = items_of(cases.every_shape(tmp_path), tasks, Pictures(Thumbnails(), 9))
        path, box, boxes, point, words, lost, gone = items
        assert path["true"][0]["at"] == [10, 10, 40, 30, 70, 50]
        assert path["predicted"][0]["at"] == [13, 8, 43, 28, 73, 48]
        assert (box["true"][0]["at"], box["predicted"][0]["at"]) == ([10, 12, 40, 32], [12, 10, 41, 30])
        assert (boxes["true"], [s["label"] for s in boxes["predicted"]]) == ([], ["cup", "lamp"])
        assert (point["predicted"][0]["kind"], point["predicted"][0]["at"]) == ("point", [42, 30])
        assert (words["truth"], words["prediction"], words["true"], words["picture"]) == ("40", "41", [], None)
        assert (lost["status"], lost["predicted"], gone["error"]) == ("parse_fail", [], "picture x.png: no such file")

    def test_all_samples_of_a_record_are_drawn(self, tasks):
        samples = [
            {"prediction": [[i, 0], [2, 2]], "accuracy": i / 2, "status": "ok", "completion": "c"} for i in (0, 1)
        ]
        (item,) = items_of([cases.prediction(0, samples=samples)], tasks, Pictures(Thumbnails(), 1))
        assert [shape["at"] for shape in item["predicted"]] == [[0, 0, 1, 1], [0.5, 0, 1, 1]]
        assert [sample["accuracy"] for sample in item["samples"]] == [0.0, 0.5]

    def test_of_two_lines_of_one_record_the_later_counts(self, tmp_path):
        cases.write_lines(tmp_path / "predictions.jsonl", [{"id": "a", "status": "oom"}, {"id": "a", "status": "ok"}])
        assert read_predictions(tmp_path)[0] == [{"id": "a", "status": "ok"}]

    def test_an_evaluation_is_shown_while_its_processes_write(self, tmp_path):
        cases.write_lines(tmp_path / "parts" / "0.jsonl", [{"id": "a"}, {"id": "c"}])
        cases.write_lines(tmp_path / "parts" / "1.jsonl", [{"id": "b"}])
        assert find_sources([tmp_path])[0].is_evaluation
        assert {prediction["id"] for prediction in read_predictions(tmp_path)[0]} == {"a", "b", "c"}


class TestTrees:
    def test_leaves_carry_rewards_and_what_their_answer_draws(self, tmp_path, tasks):
        cases.write_run(tmp_path)
        trees, notes = read_trees(tmp_path)
        assert (len(trees), notes) == (15, [])
        first = tree_items(trees, tasks, Pictures(Thumbnails(), 9))[0]
        assert (first["step"], first["prompt"], len(first["nodes"]), len(first["rows"])) == (1, "scene-1", 16, 16)
        row = first["rows"][0]
        answer = json.loads(re.search(r"<answer>(.*)</answer>", first["nodes"][row["leaf"]]["text"]).group(1))
        assert row["shapes"][0]["at"] == [x for point in answer for x in point]
        assert row["rewards"].keys() == {"format_reward", "accuracy_reward"}
        assert first["rows"][-1]["shapes"] == []

    def test_a_tree_has_the_step_that_trained_on_it(self, tmp_path, tasks):
        """The first step of a run grows trees before any update; log.jsonl calls it step 1."""
        cases.write_lines(tmp_path / "trees.jsonl", [cases.agent_tree(0, "q"), cases.agent_tree(4, "q")])
        shown = tree_items(read_trees(tmp_path)[0], tasks, Pictures(Thumbnails(), 9))
        assert [tree["step"] for tree in shown] == [1, 5]

    @pytest.mark.parametrize(("opened", "drawn"), [("<think>\n", 0), ("", 1)])
    def test_the_tag_of_a_thought_that_the_prompt_opens_is_part_of_the_completion(self, tasks, opened, drawn):
        """An answer inside a thought that never closes is none."""
        tree = cases.thought_answer_tree(0, "scene", "picture") | {"opened": opened}
        for node in tree["nodes"][:4]:
            node["text"] = node["text"].removeprefix("<think>")
        tree["nodes"][3]["text"] = "Perhaps <answer>[[1, 2], [3, 4]]</answer>"
        (shown,) = tree_items([tree], tasks, Pictures(Thumbnails(), 9))
        assert [len(row["shapes"]) for row in shown["rows"]] == [1] * 12 + [drawn] * 4
        assert (shown["opened"], shown["nodes"][0]["text"][:7]) == (opened, "Gripper")

    def test_a_picture_in_an_observation_is_one_word(self, tasks):
        pads = "<|image_pad|>"
        nodes = [{"parent": -1, "text": f"a{pads * 300}b{pads}", "tokens": ["a", *[pads] * 300, "b", pads]}]
        (shown,) = tree_items([{"step": 0, "nodes": nodes, "rows": []}], tasks, Pictures(Thumbnails(), 9))[0]["nodes"]
        assert shown["text"] == "a[picture]b[picture]" and "tokens" not in shown

    def test_pictures_of_an_observation_are_pictures_and_few(self, tasks):
        good = "data:image/png;base64,iVBORw0KGgo="
        bad = ["data:image/svg+xml;base64,AAAA", "https://example.org/a.png", good + "'", good + "A" * 70_000, 5]
        nodes = [{"parent": -1, "pictures": [*bad, *[good] * 9]}, {"parent": 0, "pictures": good}]
        one, two = tree_items([{"step": 0, "nodes": nodes, "rows": []}], tasks, Pictures(Thumbnails(), 9))[0]["nodes"]
        assert one["pictures"] == [good] * 4 and "pictures" not in two

    def test_a_resumed_run_replaces_its_trees(self, tmp_path):
        trees = [cases.agent_tree(step, "q") for step in (0, 20)] + [cases.agent_tree(20, "q") | {"question": "again"}]
        cases.write_lines(tmp_path / "trees.jsonl", [*trees, {"step": 40, "cut": "the file is full"}])
        found, notes = read_trees(tmp_path)
        assert [tree["question"] for tree in found] == ["Capital of France?", "again"]
        assert notes == ["the file is full"]

    def test_too_many_trees_are_thinned_evenly_and_it_is_said(self, tmp_path, monkeypatch):
        trees = [cases.agent_tree(step, prompt) for step in range(0, 100, 10) for prompt in "ab"]
        cases.write_lines(tmp_path / "trees.jsonl", trees)
        monkeypatch.setattr("report.tree_pages.BUDGET", 13 * len(json.dumps(trees[0])))
        found, notes = read_trees(tmp_path)
        assert {tree["step"] for tree in found} == set(range(0, 100, 10))
        assert 10 < len(found) < 14
        monkeypatch.setattr("report.tree_pages.BUDGET", 4 * len(json.dumps(trees[0])))
        assert [tree["step"] for tree in read_trees(tmp_path)[0]][:: len(found)][0] == 0
        assert read_trees(tmp_path)[0][-1]["step"] == 90
        assert "logged trees fit on the page" in notes[0]


class TestPage:
    def test_one_file_that_connects_to_nothing(self, tmp_path, tasks):
        cases.write_run(tmp_path)
        page = render_page("run", *page_content(find_sources([tmp_path]), tasks))
        assert not re.search(r"""(?:src|href|action)\s*=\s*["']?(?:https?:|//)""", page)
        assert not re.search(r"@import|url\(", page)
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page).group(1)
        assert "default-src 'none'" in policy
        assert "connect-src 'none'" in policy
        for script in re.findall(r"<script>(.*?)</script>", page, re.S):
            assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy

    def test_metrics_carry_their_intervals(self, tmp_path, tasks):
        cases.write_evaluation(tmp_path, [cases.prediction(0)])
        content, _ = page_content(find_sources([tmp_path]), tasks)
        accuracy, distance, _ = content["evaluations"][0]["metrics"]
        assert (accuracy["value"], accuracy["low"], accuracy["high"]) == (0.41, 0.35, 0.48)
        assert (distance["low"], distance["high"]) == (None, None)

    def test_nothing_a_model_wrote_is_markup(self, tmp_path, tasks):
        cases.write_hostile(tmp_path)
        page = render_page(cases.SCRIPT + "@DATA@", *page_content(find_sources([tmp_path]), tasks))
        assert page.count("<script") == page.count("</script>") == 4
        assert "<img" not in page
        data = data_of(page)
        assert cases.SCRIPT in {item["id"] for item in data["evaluations"][0]["items"]}
        assert data["runs"][0]["trees"][0]["question"] == cases.SCRIPT
        assert "3 lines of predictions.jsonl were left out" in " ".join(data["notes"])
        page.encode("utf-8")

    def test_data_inside_a_script_element_comes_back_as_it_was(self):
        content = {"a": "</script><!--", "b": "\ud800 \u2028 \u00e9 @SCRIPT@", "c": [1.5, None]}
        line = as_script_data(content)
        assert "<" not in line
        assert json.loads(line) == content


class TestCommandLine:
    def test_it_writes_the_report_beside_the_run(self, tmp_path):
        cases.write_run(tmp_path)
        done = run_report(tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"written to {tmp_path / 'report.html'}" in done.stdout
        assert data_of((tmp_path / "report.html").read_text(encoding="utf-8"))["runs"][0]["name"] == tmp_path.name

    def test_mistakes_end_with_status_2_and_one_sentence(self, tmp_path):
        cases.write_run(tmp_path / "run")
        for arguments, said in (
            ([tmp_path / "none"], "is not a folder"),
            ([tmp_path / "run", "--output", tmp_path], "is a folder: name a file"),
            ([tmp_path / "run", "--output", tmp_path / "no" / "x.html"], "x.html cannot be written (No such file"),
        ):
            done = run_report(*arguments)
            assert done.returncode == 2
            assert said in done.stderr
            assert "Traceback" not in done.stderr
