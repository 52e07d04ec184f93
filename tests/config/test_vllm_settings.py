"""Settings of vLLM: each acts with use_vllm or says why not, and none is taken without it."""

import importlib.util

import pytest

from config import vllm_settings
from config.grpo_config import GRPOConfig
from config.vllm_settings import COLOCATED, FIELDS, SERVER, TENSOR_PARALLEL
from task.errors import UserError

OTHER = {  # another value of each field
    "vllm_mode": "server",
    "vllm_gpu_memory_utilization": 0.5,
    "vllm_max_model_length": 512,
    "vllm_enable_sleep_mode": True,
    "vllm_importance_sampling_correction": False,
    "vllm_importance_sampling_mode": "token_mask",
    "vllm_importance_sampling_clip_max": 2.0,
    "vllm_importance_sampling_clip_min": 0.5,
    "vllm_importance_sampling_cap": 2.0,
    "vllm_model_impl": "transformers",
    "vllm_structured_outputs_regex": "a+",
    "vllm_tensor_parallel_size": 2,
    "vllm_group_port": 1,
    "vllm_server_base_url": "http://localhost:8000",
    "vllm_server_host": "localhost",
    "vllm_server_port": 8001,
    "vllm_server_timeout": 1.0,
}
REFUSED = {
    "vllm_enable_sleep_mode": "vLLM sleeps on a GPU only; leave it out",
    **dict.fromkeys(vllm_settings.WITHOUT_EFFECT, "would have no effect: .*; leave vllm_"),
}
BELONGS = {  # fields of one mode, and how the other refuses them
    **{("colocate", name): r"there is no server \(vllm_mode\); leave vllm_" for name in SERVER},
    **{("server", name): "give them to scripts/vllm_server.py; leave vllm_" for name in (*COLOCATED, TENSOR_PARALLEL)},
    ("colocate", TENSOR_PARALLEL): "vllm_mode=server, with .* --tensor-parallel-size 2.; leave vllm_",
}


@pytest.fixture
def installed(monkeypatch):
    """As if vLLM were installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: name == "vllm" or find(name, *rest))
    monkeypatch.setattr(vllm_settings.torch.cuda, "is_available", lambda: False)


def test_every_field_of_the_table_is_tried():
    assert set(OTHER) == set(FIELDS)
    assert {name for name in GRPOConfig.__dataclass_fields__ if name.startswith("vllm_")} == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_without_use_vllm_no_field_is_taken(tmp_path, name):
    with pytest.raises(UserError, match=f"{name}=.* would have no effect: use_vllm is false; leave {name} out"):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **{name: OTHER[name]})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_with_use_vllm_a_field_is_taken_or_refused(tmp_path, installed, mode, name):
    settings = {"output_dir": str(tmp_path), "use_cpu": True, "use_vllm": True, "vllm_mode": mode, name: OTHER[name]}
    if refused := BELONGS.get((mode, name), REFUSED.get(name)):
        with pytest.raises(UserError, match=refused):
            GRPOConfig(**settings)
    else:
        assert GRPOConfig(**settings).use_vllm


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("vllm_gpu_memory_utilization", 0.0, "must be above 0 and below 1"),
        ("vllm_gpu_memory_utilization", 1.5, "must be above 0 and below 1"),
        ("vllm_max_model_length", 1, "must be at least 2"),
    ],
)
def test_values_out_of_range(tmp_path, installed, name, value, sentence):
    with pytest.raises(UserError, match=f"{name}={value} {sentence}"):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, use_vllm=True, **{name: value})


def test_without_vllm_the_way_to_install_it_is_told(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else find(name, *rest))
    with pytest.raises(UserError, match="vLLM is not installed here: install it with bash"):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, use_vllm=True)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"vllm_mode": "both"}, "vllm_mode='both' is unknown: use 'colocate' or 'server'"),
        ({"vllm_mode": "server", "vllm_server_timeout": 0.0}, "vllm_server_timeout=0.0 must be a finite number of sec"),
        ({"vllm_mode": "server", "vllm_server_base_url": "node7:8000"}, "'node7:8000' is not the URL of a vLLM server"),
        ({"vllm_mode": "server", "vllm_server_port": 0}, "'http://0.0.0.0:0' is not the URL of a vLLM server"),
        ({"vllm_mode": "server", "vllm_server_port": 70000}, "0.0.0.0:70000' is not the URL of a vLLM server"),
    ],
)
def test_a_server_that_cannot_be_is_refused(tmp_path, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, use_vllm=True, **settings)
