"""Settings of vLLM: they act with use_vllm, as far as trees allow, and are refused without it."""

from __future__ import annotations

import importlib.util

import torch

from config.foreign import default_of
from task.errors import UserError
from trainer.engines.vllm import INSTALL
from trainer.engines.vllm.server_http import ServerHTTP, server_url

COLOCATED = ("vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_enable_sleep_mode")
# Fields that never act with trees -> the reason.
WITHOUT_EFFECT = {
    "vllm_model_impl": "weights are sent under the names of vLLM's own models",
    "vllm_structured_outputs_regex": "what a policy samples is limited by its stop strings alone",
    "vllm_group_port": "weights do not go through a process group of TRL's",
}
SERVER = ("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout")
TENSOR_PARALLEL = "vllm_tensor_parallel_size"
SPLIT = (
    "each process has an engine of its own, for its own prompts, and only a server splits a model over GPUs "
    "(vllm_mode=server, with scripts/vllm_server.py MODEL --tensor-parallel-size 2)"
)
OF_SERVER = "the server has its own; give them to scripts/vllm_server.py"
# vllm_mode -> fields that do not act in this mode -> the reason.
IDLE = {
    "colocate": dict.fromkeys(SERVER, "there is no server (vllm_mode)") | {TENSOR_PARALLEL: SPLIT},
    "server": dict.fromkeys((*COLOCATED, TENSOR_PARALLEL), OF_SERVER),
}
CORRECTION = (
    "vllm_importance_sampling_correction", "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min", "vllm_importance_sampling_cap",
)  # fmt: skip
FIELDS = ("vllm_mode", *COLOCATED, *SERVER, *CORRECTION, TENSOR_PARALLEL, *WITHOUT_EFFECT)


def check_vllm(args) -> None:
    """Raises UserError for the first setting of vLLM that would not act, and for a missing installation."""
    fields = args.__dataclass_fields__
    changed = [name for name in FIELDS if getattr(args, name) != default_of(fields[name])]
    if not args.use_vllm:
        if changed:
            name = changed[0]
            raise UserError(f"{name}={getattr(args, name)!r} would have no effect: use_vllm is false; leave {name} out")
        return
    if args.vllm_mode not in IDLE:
        raise UserError(f"vllm_mode={args.vllm_mode!r} is unknown: use 'colocate' or 'server'")
    idle = WITHOUT_EFFECT | IDLE[args.vllm_mode]
    for name in changed:
        if name in idle:
            raise UserError(f"{name}={getattr(args, name)!r} would have no effect: {idle[name]}; leave {name} out")
    if args.vllm_mode == "server":
        ServerHTTP(server_url(args), args.vllm_server_timeout)
        return
    if not 0 < args.vllm_gpu_memory_utilization < 1:
        raise UserError(
            f"vllm_gpu_memory_utilization={args.vllm_gpu_memory_utilization} must be above 0 and below 1: it is the "
            "share of the device's memory for vLLM's weights, keys and values"
        )
    if args.vllm_max_model_length is not None and args.vllm_max_model_length < 2:
        raise UserError(f"vllm_max_model_length={args.vllm_max_model_length} must be at least 2: a prompt and a token")
    if args.vllm_enable_sleep_mode and not torch.cuda.is_available():
        raise UserError("vllm_enable_sleep_mode=True would have no effect: vLLM sleeps on a GPU only; leave it out")
    if importlib.util.find_spec("vllm") is None:
        raise UserError(f"use_vllm=True, but vLLM is not installed here: {INSTALL}")
