"""scripts/data/check.py: lists everything that would go wrong, and its exit status says whether anything would."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from paths import ROOT
from PIL import Image

SCRIPT = ROOT / "scripts" / "data" / "check.py"
TYPE = "trajectory-sharerobot"


@pytest.fixture(scope="module")
def check():
    return runpy.run_path(str(SCRIPT))["main"]


def write(folder, records):
    Image.new("RGB", (56, 28)).save(folder / "a.png")
    Image.new("RGB", (112, 84)).save(folder / "b.png")
    (folder / "cut.png").write_bytes((folder / "b.png").read_bytes()[:60])
    (folder / "data.jsonl").write_text("\n".join(json.dumps(one) for one in records))
    (folder / "data.yaml").write_text("datasets:\n- json_path: data.jsonl\n")
    return str(folder / "data.yaml")


def write_clip(path):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width, stream.height, stream.pix_fmt = 56, 56, "yuv420p"
        for _ in range(5):
            container.mux(stream.encode(av.VideoFrame(56, 56, "yuv420p")))
        container.mux(stream.encode())


def record(image="a.png", **changes):
    return {"question": "Move.", "answer": [[1, 1], [2, 2]], "question_type": TYPE, "image": image} | changes


def values(text):
    """The table as a dict; widths of spaces do not matter."""
    return {" ".join(line[:48].split()): line[48:].strip() for line in text.splitlines() if not line.startswith("- ")}


def test_clean_data(check, tmp_path, capsys):
    manifest = write(tmp_path, [record(), record("b.png"), record(["a.png", "b.png"]), record(None, answer=None)])
    assert check([manifest]) == 0
    table = values(capsys.readouterr().out)
    assert table["records"] == table[f"question type {TYPE}"] == "4"
    assert (table["modality one image"], table["modality several images"], table["modality text"]) == ("2", "1", "1")
    assert (table["pictures"], table["size 56x28"], table["size 112x84"]) == ("4", "2", "2")
    assert table["width, minimum to maximum"] == "56 to 112"
    assert table["problems"] == "0"


def test_every_problem_is_listed_at_once(check, tmp_path, capsys):
    faulty = [
        record("cut.png", id="cut"),
        record("none.png", id="gone"),
        record(question_type="trajectory-sharerobt", id="typo"),
        record(id="twin"),
        record(id="twin"),
        record(question="<image> <image>", id="slots"),
        record(answer="[[1, 1], [2, 2", id="text"),
        record(None, id="bare"),
    ]
    assert check([write(tmp_path, [*faulty, record()])]) == 1
    text = capsys.readouterr().out
    listed = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(listed) == 7
    for words in (
        "record 'cut': picture",
        "none.png' does not exist",
        f"did you mean '{TYPE}'",
        "'twin' is taken",
        "slots",
        "record 'text': the rewards of",
        "record 'bare': the rewards of",
    ):
        assert sum(words in line for line in listed) >= 1, words
    assert values(text)["records with bad media"] == "1"
    assert values(text)["problems"] == "7"


def test_a_long_list_is_cut_and_counted(check, tmp_path, capsys):
    assert (
        check([write(tmp_path, [record(question_type=chr(97 + n // 26) + chr(97 + n % 26)) for n in range(60)])]) == 1
    )
    assert capsys.readouterr().out.splitlines()[-1] == "- and 10 more kinds"


def test_prompts_are_measured_with_their_pictures(check, tmp_path, capsys, tiny_model_dir):
    manifest = write(tmp_path, [record("a.png", id="small"), record("b.png", id="large")])
    command = [manifest, "--model_name_or_path", str(tiny_model_dir), "--min_pixels", "784", "--max_pixels", "100000"]
    assert check(command) == 0
    least, _, most = values(capsys.readouterr().out)["prompt tokens, minimum / median / maximum"].split(" / ")
    assert int(most) - int(least) == 12 - 2  # cells of 28x28 pixels in each picture

    assert check([*command, "--max_prompt_length", least]) == 1
    text = capsys.readouterr().out
    assert values(text)[f"prompts over {least} tokens"] == "1 (50.0%)"
    assert f"record 'large': the prompt has {most} tokens, over max_prompt_length {least}" in text


def test_a_video_is_measured_like_any_prompt(check, tmp_path, capsys, tiny_model_dir):
    write_clip(tmp_path / "clip.mp4")
    records = [record(None, video="clip.mp4"), record(None, question="<|image_pad|>", id="pads")]
    assert check([write(tmp_path, records), "--model_name_or_path", str(tiny_model_dir)]) == 1
    text = capsys.readouterr().out
    assert values(text)["modality video"] == "1"
    assert "record 'pads': the text of the user turn contains <|image_pad|>" in text
    assert values(text)["problems"] == "1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.yaml"], "none.yaml does not exist"),
        (["MANIFEST", "--model_name_or_path", "nowhere"], "nowhere"),
        (["MANIFEST", "--max_pixels", "1000"], "--max_pixels needs --model_name_or_path"),
        (["MANIFEST", "--no_such_flag"], "--no_such_flag"),
        (["MANIFEST", "--thought_end", "think"], "thought_end='think' cannot be told from <think>"),
        (["MANIFEST", "--max_prompt_length", "0", "--model_name_or_path", "x"], "--max_prompt_length 0: it must be"),
    ],
)
def test_a_wrong_command_is_status_2(check, tmp_path, capsys, arguments, words):
    manifest = write(tmp_path, [record()])
    try:
        status = check([manifest if argument == "MANIFEST" else argument for argument in arguments])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert words in capsys.readouterr().err


def test_the_command_runs_from_any_folder_without_torch(tmp_path):
    manifest = write(tmp_path, [record()])
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as stop: assert stop.code == 0 and 'torch' not in sys.modules, stop.code"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT), manifest], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert values(done.stdout)["records"] == "1"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([[0, 0], [500, 500]], "[500.0, 500.0] lies outside the picture of 56x28 pixels: is the scale right?"),
        ([[10, 10], [-30, 5]], "[-30.0, 5.0] lies outside the picture"),
        ([[10, 40], [12, 50]], "[10.0, 40.0] lies outside the picture"),
        ([[0.1, 0.2], [0.5, 0.9]], "all numbers of [0.1, 0.2] lie between 0 and 1: are they fractions of the picture?"),
        ([[0, 0], [56.5, 28.9]], None),
    ],
)
def test_answers_on_another_scale_are_problems(check, tmp_path, capsys, answer, words):
    """A run on them would only show rewards near 0."""
    assert check([write(tmp_path, [record(answer=answer, id="r7")])]) == (words is not None)
    if words:
        assert f"- record 'r7': {words}" in capsys.readouterr().out


def test_a_jpeg_that_was_written_over_is_a_problem(check, tmp_path, capsys):
    """Pillow decodes it without a word, and what lies below is grey or shifted."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8))
    folder = Path(write(tmp_path, [record(f"{name}.jpg", id=name) for name in ("whole", "hole", "progressive")])).parent
    noise.save(folder / "whole.jpg")
    noise.save(folder / "progressive.jpg", progressive=True)
    content = (folder / "whole.jpg").read_bytes()
    middle = len(content) // 2
    (folder / "hole.jpg").write_bytes(content[:middle] + b"Z" * 512 + content[middle + 512 :])
    Image.open(folder / "hole.jpg").load()
    assert check([str(folder / "data.yaml")]) == 1
    listed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("- ")]
    assert len(listed) == 1
    assert "record 'hole': picture" in listed[0] and "its data are damaged" in listed[0]


def test_equal_problems_are_one_line_with_their_number(check, tmp_path, capsys):
    gone = [record(f"none{number}.png", id=f"gone-{number}") for number in range(7)]
    unnamed = [{"instruction": "Move.", "answer": None, "question_type": TYPE} for _ in range(3)]
    assert check([write(tmp_path, [*unnamed, *gone, record(question_type="other")])]) == 1
    text = capsys.readouterr().out
    listed = [line for line in text.splitlines() if line.startswith("- ")]
    assert values(text)["problems"] == "11" and len(listed) == 3
    assert "none0.png' does not exist" in listed[0] and "(and 6 like it: " in listed[0] and "'gone-1'" in listed[0]
    assert "question is missing, its keys are instruction, answer, question_type; every" in listed[1]
    assert "(and 2 like it: " in listed[1] and "like it" not in listed[2]
