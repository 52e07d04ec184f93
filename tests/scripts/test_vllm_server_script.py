"""scripts/vllm_server.py starts vLLM with this project's worker, and says what is missing."""

import importlib.util

import pytest
from paths import ROOT

from scripts import vllm_server as script
from trainer.engines.vllm.size import Size

MODEL = str(ROOT / "scripts" / "demo" / "tiny_model")


def test_the_command_line_has_the_worker_of_trees_and_the_users_flags_last(monkeypatch):
    monkeypatch.setattr(script.torch.cuda, "is_available", lambda: False)
    line = script.command(MODEL, Size(512, rows=32, memory=0.1), None, ["--port", "8001"])
    assert line[1:3] == ["-m", "vllm.entrypoints.openai.api_server"] and line[-2:] == ["--port", "8001"]
    flags = dict(flag.split("=", 1) for flag in line if "=" in flag)
    wanted = {"--model": MODEL, "--dtype": "float32", "--max-model-len": "512", "--max-num-seqs": "32"}
    assert flags | wanted == flags
    assert flags["--worker-extension-cls"] == script.WORKER
    assert float(flags["--mm-processor-cache-gb"]) > 0, "pictures are sent once, and then by their name"
    assert {"--enable-scale-out", "--enable-prefix-caching", "--no-async-scheduling"} <= set(line)


def test_the_worker_is_found_by_its_name():
    module, _, _ = script.WORKER.rpartition(".")
    assert importlib.util.find_spec(module) is not None


def test_the_environment_finds_this_checkout_and_opens_the_servers_endpoints():
    found = script.environment_of({"PYTHONPATH": "/own", "HOME": "/home"})
    assert found["PYTHONPATH"].split(":") == [str(ROOT), "/own"] and found["HOME"] == "/home"
    assert found["VLLM_SERVER_DEV_MODE"] == "1" and found["VLLM_USE_V2_MODEL_RUNNER"] == "0"


@pytest.mark.parametrize(
    ("installed", "model", "sentence"),
    [
        (False, MODEL, "vLLM is not installed here: install it with"),
        (True, "no/such/model", "no/such/model is no model"),
    ],
)
def test_what_is_missing_is_told_in_one_sentence(monkeypatch, capsys, installed, model, sentence):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: installed or None if name == "vllm" else find(name, *rest)
    )
    monkeypatch.setattr(script.os, "execve", lambda *call: pytest.fail("started"))
    assert script.main([model]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said and "\n" not in said
