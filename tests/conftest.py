"""Shared fixtures: one thread, no network, and the small models the tests run on."""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import pytest
from paths import ROOT


def pytest_addoption(parser):
    parser.addoption("--engine", choices=("own", "vllm"), default="own", help="which engine the engine's tests run on")


def pytest_configure(config):
    if config.getoption("--engine") != "own":
        import engine_cases

        engine_cases.NAME["engine"] = config.getoption("--engine")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--engine") != "own":
        skip = pytest.mark.skip(reason="about the internals of the project's own engine")
        for item in (item for item in items if "own_engine" in item.keywords):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def one_thread():
    """Limits torch to one thread: several pools on a small machine slow each other about tenfold."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model_dir() -> Path:
    """Folder of the shipped tiny Qwen2.5-VL: weights, processor, chat template."""
    return ROOT / "scripts" / "demo" / "tiny_model"


@pytest.fixture(scope="session")
def tiny_vlm(tiny_model_dir, one_thread):
    """(module, model in float32 and eval mode, processor) of the shipped model. Shared: copy before changing it."""
    from model.registry import module_for

    module = module_for(str(tiny_model_dir))
    model = module.load_model(str(tiny_model_dir), dtype="float32", attn_implementation="sdpa").eval()
    return module, model, module.load_processor(str(tiny_model_dir))


@pytest.fixture(scope="session")
def tiny_text_dir(tiny_model_dir, tmp_path_factory, one_thread) -> Path:
    """Folder of a random two-layer Qwen2 text model with the shipped tokenizer and chat template."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("tiny_text")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.1,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_text(tiny_text_dir):
    """(module, model in float32 and eval mode, tokenizer) of the random text model. Shared: copy before changing it."""
    from model.registry import module_for

    module = module_for(str(tiny_text_dir))
    model = module.load_model(str(tiny_text_dir), dtype="float32", attn_implementation="sdpa").eval()
    return module, model, module.load_processor(str(tiny_text_dir))
