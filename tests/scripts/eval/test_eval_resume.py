"""eval.py is stopped, killed and shared among processes, and always gives the lines of a run in one piece."""

import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from paths import ROOT
from peft import LoraConfig, get_peft_model
from PIL import Image

from model.loading import load_policy
from scripts.eval import eval as script

RECORDS = 10
SAMPLED = ["--temperature", 1, "--num_samples", 2]


@pytest.fixture
def manifest(tmp_path):
    """Ten records: pictures of several sizes, and text without one."""
    records = []
    for i in range(RECORDS):
        record = {
            "id": f"r{i}",
            "question": "Move to the red cube." + " Now." * (i % 4),
            "question_type": "trajectory-sharerobot",
        }
        if i % 3 == 2:
            record |= {"question_type": "math-reasoning", "answer": str(i)}
        else:
            Image.new("RGB", (84 + 14 * (i % 3), 84 + 28 * (i % 2)), (25 * i, 90, 120)).save(tmp_path / f"{i}.png")
            record |= {
                "question_type": "trajectory-sharerobot",
                "answer": [[10.0, 20.0], [50.0, 45.0]],
                "image": f"{i}.png",
            }
        records.append(record)
    (tmp_path / "data.json").write_text(json.dumps(records))
    (tmp_path / "data.yaml").write_text(json.dumps({"datasets": [{"json_path": "data.json", "data_root": "."}]}))
    return tmp_path / "data.yaml"


@pytest.fixture
def command(manifest, tmp_path, tiny_model_dir, one_thread):
    """The words of a call of eval.py that writes to a folder of this name."""

    def words(out, *flags):
        fixed = ["--model_name_or_path", tiny_model_dir, "--dataset", manifest, "--max_new_tokens", 24]
        return [str(word) for word in (*fixed, "--batch_size", 4, "--output_dir", tmp_path / out, *flags)]

    return words


def lines(folder: Path) -> list[str]:
    return (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()


def metrics(folder: Path) -> dict:
    result = json.loads((folder / "metrics.json").read_text())
    return {key: result[key] for key in ("metrics", "intervals")} | {"tokens": result["counts"]["generated_tokens"]}


@pytest.mark.parametrize("flags", [[], SAMPLED], ids=["greedy", "sampled"])
def test_a_half_written_line_is_dropped_and_the_rest_is_kept(command, tmp_path, flags, monkeypatch):
    assert script.main(command("whole", *flags)) == 0
    whole = lines(tmp_path / "whole")
    assert script.main(command("cut", *flags)) == 0
    (tmp_path / "cut" / "metrics.json").unlink()
    (tmp_path / "cut" / "predictions.jsonl").unlink()
    (tmp_path / "cut" / "parts").mkdir()
    part = tmp_path / "cut" / "parts" / "0.jsonl"
    part.write_text("\n".join([whole[5], whole[2], whole[7][: len(whole[7]) // 2]]))  # kill -9 in the third line
    assert script.main(command("cut", *flags)) == 0
    assert lines(tmp_path / "cut") == whole
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert not part.exists()


def test_lines_of_another_form_are_evaluated_again(command, tmp_path):
    """Damaged, or of a version that wrote other columns: none of them is a prediction."""
    assert script.main(command("out")) == 0
    whole = lines(tmp_path / "out")
    older = {name: value for name, value in json.loads(whole[1]).items() if name != "tokens"}
    odd = [{"id": ["r0"], "status": "ok"}, older, json.loads(whole[2]) | {"status": ["ok"]}, ["r3"], "[" * 100_000]
    odd = [entry if isinstance(entry, str) else json.dumps(entry) for entry in odd]
    twice = [whole[6], json.dumps(json.loads(whole[7]) | {"id": "of another data set"}), whole[8] + "\r"]
    (tmp_path / "out" / "predictions.jsonl").write_text("\n".join([*odd, *whole[5:], *twice, ""]))
    assert script.main(command("out")) == 0
    assert lines(tmp_path / "out") == whole


def test_a_folder_belongs_to_one_evaluation_at_a_time(command, tmp_path, capsys):
    """Before its first line nothing else would tell another model's evaluation that this one writes there."""
    files = script.PredictionFiles(tmp_path / "out")
    files.prepare({"fingerprint": "of another model"}, overwrite=False)
    assert script.main(command("out")) == 2
    assert "out: another eval.py is writing there; let it finish, or name another folder" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "settings.json").read_text()) == {"fingerprint": "of another model"}
    del files
    assert script.main(command("out")) == 0


def test_a_finished_evaluation_loads_no_model_again(command, tmp_path, monkeypatch):
    assert script.main(command("out")) == 0
    whole, was = lines(tmp_path / "out"), metrics(tmp_path / "out")
    monkeypatch.setattr(script, "evaluation_engine", lambda *_: pytest.fail("nothing is left to do"))
    assert script.main(command("out", "--batch_size", 2)) == 0
    assert (lines(tmp_path / "out"), metrics(tmp_path / "out")) == (whole, was)


def test_another_batch_size_is_another_evaluation_where_completions_are_sampled(command, capsys):
    assert script.main(command("out", "--temperature", 1)) == 0
    assert script.main(command("out", "--temperature", 1, "--batch_size", 3)) == 2
    assert "(other batch_size)" in capsys.readouterr().err


def test_another_threshold_is_the_same_predictions_and_other_metrics(command, tmp_path):
    assert script.main(command("out", *SAMPLED)) == 0
    whole = lines(tmp_path / "out")
    assert metrics(tmp_path / "out")["metrics"]["trajectory-sharerobot"]["pass@2"] < 1
    assert script.main(command("out", *SAMPLED, "--pass_threshold", 0)) == 0
    assert lines(tmp_path / "out") == whole
    assert metrics(tmp_path / "out")["metrics"]["trajectory-sharerobot"]["pass@2"] == 1


def test_what_failed_is_tried_again(command, tmp_path):
    good = (tmp_path / "4.png").read_bytes()
    (tmp_path / "4.png").write_bytes(b"<html>")
    assert script.main(command("out", "--on_bad_media", "skip")) == 0
    assert json.loads(lines(tmp_path / "out")[4])["status"] == "load_error"
    assert script.main(command("out", "--on_bad_media", "skip")) == 0
    (tmp_path / "4.png").write_bytes(good)
    assert script.main(command("out")) == 0
    assert script.main(command("whole")) == 0
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")


def test_greedy_samples_are_refused(command, capsys):
    assert script.main(command("out", "--num_samples", 4)) == 2
    assert "--num_samples 4 needs --temperature above 0" in capsys.readouterr().err


class Killed:
    """A file that is killed, and its process with it, once it has taken this many characters."""

    def __init__(self, file, characters: int):
        self.file, self.left = file, characters

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, text: str) -> None:
        self.file.write(text[: self.left])
        self.left -= len(text)
        if self.left < 0:
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def flush(self) -> None:
        self.file.flush()


class Full(Killed):
    """A file on a disk that is full once it has taken this many characters."""

    def write(self, text: str) -> None:
        self.file.write(text[: self.left])
        self.left -= len(text)
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_is_named_and_costs_nothing_that_was_written(command, tmp_path, capsys, monkeypatch):
    assert script.main(command("whole")) == 0
    with monkeypatch.context() as patch:
        append_to = script.PredictionFiles.append_to
        patch.setattr(script.PredictionFiles, "append_to", lambda self, index: Full(append_to(self, index), 4000))
        assert script.main(command("out")) == 2
    assert f"--output_dir {tmp_path / 'out'}: No space left on device; free space" in capsys.readouterr().err
    assert not (tmp_path / "out" / "parts" / "0.jsonl").read_bytes().endswith(b"\n")
    assert script.main(command("out")) == 0
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")


def evaluate_in_a_child(words: list[str], killed_after: int) -> int:
    """Exit code of eval.py in a forked process, which has libraries and model already."""

    def run():
        append_to = script.PredictionFiles.append_to
        script.PredictionFiles.append_to = lambda self, index: Killed(append_to(self, index), killed_after)
        os._exit(script.main(words))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(120)
    return child.exitcode


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], SAMPLED], ids=["greedy", "sampled"])
def test_twenty_random_kills_change_nothing(command, tmp_path, flags, monkeypatch):
    built, kept, engine_of = [], ExitStack(), script.evaluation_engine

    def build_once(*given):
        if not built:
            built.append(kept.enter_context(engine_of(*given)))
        return nullcontext(built[0])

    monkeypatch.setattr(script, "evaluation_engine", build_once)
    assert script.main(command("whole", *flags)) == 0
    whole, size = lines(tmp_path / "whole"), (tmp_path / "whole" / "predictions.jsonl").stat().st_size
    draw, seen = random.Random(0), []
    for number in range(20):
        out = tmp_path / f"killed{number % 5}"
        written = sum(file.stat().st_size for file in out.glob("parts/*.jsonl"))
        assert evaluate_in_a_child(command(out.name, *flags), draw.randrange(size - written)) == -signal.SIGKILL
        seen.append(sum(file.read_bytes().count(b"\n") for file in out.glob("parts/*.jsonl")))
    print(f"20 kills, lines written at each: {seen}")
    assert len(set(seen)) >= 5
    for number in range(5):
        out = tmp_path / f"killed{number}"
        assert evaluate_in_a_child(command(out.name, *flags), 10**9) == 0
        assert lines(out) == whole
        assert metrics(out) == metrics(tmp_path / "whole")


def launch(words: list[str], processes: int) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--master_port", "0"]
    launcher += ["--standalone", str(ROOT / "scripts" / "eval" / "eval.py")]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launcher, *words], env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


@pytest.mark.slow
def test_four_processes_share_ten_records_and_each_counts_once(command, tmp_path):
    assert script.main(command("alone")) == 0
    launch(command("shared"), 4)
    assert lines(tmp_path / "shared") == lines(tmp_path / "alone")
    assert metrics(tmp_path / "shared") == metrics(tmp_path / "alone")
    ids = [json.loads(line)["id"] for line in lines(tmp_path / "shared")]
    assert ids == [f"r{i}" for i in range(RECORDS)]
    counts = json.loads((tmp_path / "shared" / "metrics.json").read_text())["counts"]
    assert counts["items"] == RECORDS


@pytest.mark.slow
def test_processes_without_a_record_leave_an_unusable_checkpoint_with_the_others(command, tmp_path, tiny_model_dir):
    """The third process of three has none of two records and loads no adapter: it must not wait where nobody comes."""
    module, model, _ = load_policy(str(tiny_model_dir), dtype="float32")
    for step, zero in ((1, True), (2, False)):
        config = LoraConfig(r=2, target_modules=module.lora_target_modules(model), init_lora_weights=zero)
        tuned = get_peft_model(model, config)
        tuned.save_pretrained(tmp_path / "run" / f"checkpoint-{step}")
        model = tuned.unload()
    launch(command("out", "--adapter_path", tmp_path / "run", "--checkpoints", "all", "--limit", 2), 3)
    steps = json.loads((tmp_path / "out" / "checkpoints.json").read_text())["steps"]
    assert "every lora_B is zero" in steps[0]["fault"]
    assert sum(metrics["n"] for metrics in steps[1]["metrics"].values()) == 2


@pytest.mark.slow
def test_a_mistake_ends_all_processes_with_its_sentence(command, tmp_path):
    assert script.main(command("out")) == 0
    with pytest.raises(AssertionError, match="holds predictions of another evaluation"):
        launch(command("out", "--max_new_tokens", 8), 2)
