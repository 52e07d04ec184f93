"""scripts/eval/compare.py: pairing by id, the paired bootstrap, and what it refuses."""

import base64
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from scripts.eval import changed_items
from scripts.eval import compare as script
from trainer.evaluation import intervals
from trainer.evaluation.intervals import bootstrap_interval


def item(id, accuracy, answer="a", status="ok", question_type="t", format=1.0, length=None):
    return {
        "id": id,
        "question_type": question_type,
        "answer": answer,
        "accuracy": accuracy,
        "format": format,
        "status": status,
        "length": length,
        "tokens": 3,
        "record": {},
    }


def write(folder, items):
    folder.mkdir(exist_ok=True)
    (folder / "predictions.jsonl").write_text("".join(json.dumps(i) + "\n" for i in items), encoding="utf-8")
    return str(folder)


LENGTHS = {
    "t": SimpleNamespace(
        compute_metrics=lambda predictions, **kw: {"gap": predictions[0]["length"], "steps": predictions[0]["length"]},
        metrics={"gap": "lower"},
        thought_end="</think>",
    )
}


def test_pairs_by_id_not_by_place(tmp_path):
    a = write(tmp_path / "a", [item("x", 0.0), item("y", 1.0)])
    b = write(tmp_path / "b", [item("y", 1.0), item("x", 0.5)])
    pairs, notes = script.pair(script.read_predictions(a), script.read_predictions(b), common=False)
    metrics = script.compare(pairs, {})["t"]["accuracy"]
    assert notes == []
    assert (metrics["a"], metrics["b"], metrics["difference"], metrics["relative"]) == (0.5, 0.75, 0.25, 0.5)
    assert (metrics["wins"], metrics["losses"]) == (1, 0)


def test_a_distance_is_better_when_lower():
    pairs = [(item(str(i), 0.5, length=10.0), item(str(i), 0.5, length=8.0 if i else 11.0)) for i in range(4)]
    metrics = script.compare(pairs, LENGTHS)["t"]["gap"]
    assert (metrics["better"], metrics["wins"], metrics["losses"]) == ("lower", 3, 1)
    assert metrics["relative"] == pytest.approx(-0.125)


def test_a_metric_without_a_declared_direction_gets_no_verdict():
    """Its name says nothing: an error_free_share would be taken for an error."""
    pairs = [(item(str(i), 0.5, length=10.0), item(str(i), 0.5, length=8.0 + 2 * i)) for i in range(3)]
    result = script.compare(pairs, LENGTHS)
    metrics = result["t"]["steps"]
    assert (metrics["better"], metrics["wins"], metrics["losses"], metrics["ties"]) == (None, None, None, 1)
    assert "no direction declared" in script.table(result)
    assert script.compare([(item("x", 0.0), item("x", 1.0))], {})["t"]["accuracy"]["wins"] == 1


def test_interval_agrees_with_the_normal_one_and_repeats():
    differences = np.random.default_rng(0).normal(0.1, 0.3, size=400)
    low, high = bootstrap_interval(differences, 10_000, seed=42)
    half = 1.96 * differences.std(ddof=1) / 20
    assert low == pytest.approx(differences.mean() - half, abs=0.003)
    assert high == pytest.approx(differences.mean() + half, abs=0.003)
    assert (low, high) == bootstrap_interval(differences, 10_000, seed=42)
    assert (low, high) != bootstrap_interval(differences, 10_000, seed=43)


def test_interval_is_paired(monkeypatch):
    # Items differ a lot from each other, but B is better by exactly 0.1 on each: the paired interval has no width.
    monkeypatch.setattr(intervals, "RESAMPLES_AT_ONCE", 7)
    pairs = [(item(str(i), float(i)), item(str(i), i + 0.125)) for i in range(5)]
    metrics = script.compare(pairs, {}, resamples=200)["t"]["accuracy"]
    assert (metrics["low"], metrics["high"]) == (0.125, 0.125)


def test_ids_of_one_side_are_refused_unless_common(tmp_path, capsys):
    a = write(tmp_path / "a", [item("x", 0.0), item("y", 1.0)])
    b = write(tmp_path / "b", [item("x", 1.0), item("z", 1.0)])
    assert script.main([a, b]) == 2
    assert "1 ids are only in A and 1 only in B (such as 'y')" in capsys.readouterr().err
    assert script.main([a, b, "--common", "--json"]) == 0
    out = capsys.readouterr()
    assert "they are left out" in out.err
    assert json.loads(out.out)["t"]["accuracy"]["n"] == 1


def test_other_data_under_the_same_id_is_refused(tmp_path, capsys):
    a, b = write(tmp_path / "a", [item("x", 0.0)]), write(tmp_path / "b", [item("x", 0.0, answer="b")])
    assert script.main([a, b]) == 2
    assert "id 'x' has a different answer" in capsys.readouterr().err


def test_load_errors_and_abstentions_leave_the_pairs():
    a = {i: item(i, 1.0) for i in "xyz"}
    b = {"x": item("x", None, status="load_error"), "y": item("y", None), "z": item("z", 0.0)}
    pairs, notes = script.pair(a, b, common=False)
    result = script.compare(pairs, {})["t"]
    assert "1 items could not be loaded or completed" in notes[0]
    assert (result["accuracy"]["n"], result["format"]["n"]) == (1, 2)


LINE = json.dumps(item("x", 1.0))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"{LINE}\n{LINE}\n", "line 2: id 'x' occurs twice"),
        (f"{LINE}\n{LINE[:40]}", "line 2: not a prediction of eval.py"),
        ("[]\n", "line 1: not a prediction"),
        ('{"id": "x", "accuracy": 1.0}\n', "line 1: not a prediction"),
        (LINE.replace("1.0", '"high"'), "line 1: not a prediction"),
        (LINE.replace('"x"', '["x"]'), "line 1: not a prediction"),
        (LINE.encode("utf-16"), "line 1: not a prediction"),
        ("\n", "holds no predictions"),
    ],
)
def test_broken_files_give_one_sentence(tmp_path, capsys, content, words):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "predictions.jsonl").write_bytes(content)
    assert script.main([str(tmp_path), str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_a_line_separator_inside_a_string_is_no_line_end(tmp_path):
    line = json.dumps(item("x", 1.0) | {"completion": "one\u2028two"}, ensure_ascii=False)
    (tmp_path / "p.jsonl").write_text(f"\ufeff{line}\r\n", encoding="utf-8")  # and a Windows editor's marks are none
    assert script.read_predictions(str(tmp_path / "p.jsonl"))["x"]["completion"] == "one\u2028two"


def test_table_names_every_metric_and_its_direction():
    pairs = [(item("x", 0.0, length=4.0), item("x", 1.0, length=2.0))]
    text = script.table(script.compare(pairs, LENGTHS))
    assert "accuracy (higher)" in text
    assert "gap (lower)" in text
    assert "-50.0%" in text


def test_missing_folder(tmp_path, capsys):
    assert script.main([str(tmp_path / "none"), str(tmp_path)]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_ties_and_samples_are_counted():
    def several(id, *scores):
        samples = [{"accuracy": score, "format": 1.0, "status": "ok"} for score in scores]
        return item(id, sum(scores) / len(scores)) | {"samples": samples}

    pairs = [(several("x", 1.0, 0.0), several("x", 1.0, 1.0)), (several("y", 0.0, 0.0), several("y", 0.0, 0.0))]
    metrics = script.compare(pairs, {})["t"]
    assert [metrics["accuracy"][key] for key in ("wins", "losses", "ties")] == [1, 0, 1]
    assert (metrics["pass@1"]["a"], metrics["pass@1"]["b"], metrics["pass@2"]["a"]) == (0.25, 0.5, 0.5)


def test_the_most_changed_items_come_first_with_their_pictures(tmp_path, capsys):
    Image.new("RGB", (400, 200), "red").save(tmp_path / "p.png")
    hostile = "<script>alert(1)</script>"

    def told(id, accuracy, **changes):
        record = {"question": f"Where is {id}? {hostile}", "images": [str(tmp_path / "p.png")]}
        return item(id, accuracy) | {"completion": hostile, "prediction": [[1, 2]], "record": record} | changes

    a = write(tmp_path / "a", [told("x", 0.5), told("y", 0.0), told("z", 1.0), told("same", 0.5)])
    b = write(tmp_path / "b", [told("x", 0.25), told("y", 0.75), told("z", 0.0), told("same", 0.5)])
    assert script.main([a, b, "--changed", "2", "--html", str(tmp_path / "out.html")]) == 0
    shown = capsys.readouterr().out.split("changed most")[1]
    assert shown.index("z") < shown.index("y")
    assert "same" not in shown
    html = (tmp_path / "out.html").read_text()
    assert html.count("data:image/jpeg;base64,") == 2
    assert "<script" not in html and "&lt;script&gt;" in html
    assert "http" not in html


def test_a_picture_that_is_gone_costs_only_the_picture(tmp_path):
    record = {"question": "q", "images": [str(tmp_path / "gone.png")]}
    pairs = [(item("x", 0.0) | {"record": record}, item("x", 1.0) | {"record": record})]
    assert "picture" in changed_items.page("A", "B", "", changed_items.changed_items(pairs, 10))


def test_a_thumbnail_is_upright_on_white(tmp_path):
    picture, exif = Image.new("RGB", (24, 16), "red"), Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "phone.jpg", exif=exif)
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    shown = []
    for name in ("phone.jpg", "clear.png"):
        data = changed_items._thumbnail(str(tmp_path / name)).split("base64,")[1].partition('"')[0]
        shown.append(Image.open(io.BytesIO(base64.b64decode(data))))
    assert shown[0].size == (16, 24) and min(shown[1].getpixel((4, 4))) > 250


def test_a_metric_that_needs_many_predictions_leaves_the_others(tmp_path):
    def spread(predictions):
        return {"spread": 1 / (len(predictions) - 1)}

    pairs = [(item("x", 0.0), item("x", 1.0))]
    metrics = script.compare(pairs, {"t": SimpleNamespace(compute_metrics=spread, metrics={})})["t"]
    assert metrics["accuracy"]["difference"] == 1.0 and "spread" not in metrics


def test_another_question_under_the_same_id_is_refused(tmp_path, capsys):
    sides = [write(tmp_path / q, [item("x", 1.0, answer="yes") | {"record": {"question": q}}]) for q in "ab"]
    assert script.main(sides) == 2
    assert "a different question in A" in capsys.readouterr().err


def test_half_a_surrogate_in_an_id_can_be_written(tmp_path):
    sides = [write(tmp_path / str(score), [item("x\ud800", score)]) for score in (0.0, 1.0)]
    assert script.main([*sides, "--json", "--html", str(tmp_path / "out.html")]) == 0
    assert "x\\ud800" in (tmp_path / "out.html").read_text(encoding="utf-8")
