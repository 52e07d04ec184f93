"""Starts `vllm serve` for training with --vllm_mode server: the sampler of trees, and weights that come from the run.

    python scripts/vllm_server.py MODEL --port 8000 --max-model-len 8192

Further arguments are vLLM's own. The weights of MODEL are not loaded: the run sends its weights before it samples.
"""

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _root import locate, use_checkout

ROOT = use_checkout()

import torch
from transformers import AutoConfig

from trainer.engines.vllm.engine_arguments import engine_arguments
from trainer.engines.vllm.size import Size
from trainer.engines.vllm.start import ENVIRONMENT, ON_A_CPU

WORKER = "trainer.engines.vllm.server_worker.ServedWorker"


def flags_of(arguments: dict) -> list[str]:
    """Arguments of vLLM's engine as flags of its command line.

    >>> flags_of({"max_logprobs": 2, "enforce_eager": True, "async_scheduling": False})
    ['--max-logprobs=2', '--enforce-eager', '--no-async-scheduling']
    """
    flags = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags.append(f"--{flag}={json.dumps(value) if isinstance(value, dict) else value}")
    return flags


def command(model: str, size: Size, dtype: str | None, others: list[str]) -> list[str]:
    """The command line of the server. `others`: further flags of vLLM, which win."""
    given = dtype or ("bfloat16" if torch.cuda.is_available() else "float32")
    config = AutoConfig.from_pretrained(model)
    arguments = engine_arguments(model, config, getattr(torch, given), size)
    arguments |= {"max_logprobs": 3, "worker_extension_cls": WORKER}
    if hasattr(config, "vision_config"):
        arguments["mm_processor_cache_gb"] = 4  # pictures are sent once, and then by their name
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enable-scale-out"]
    return [*server, *flags_of(arguments), *others]


def environment_of(variables: dict[str, str]) -> dict[str, str]:
    """The environment of the server, which finds this checkout's worker."""
    found = variables | ENVIRONMENT | ({} if torch.cuda.is_available() else ON_A_CPU)
    found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"))))
    server = ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
    return found | dict.fromkeys(server, "1")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or name of the model that trains")
    parser.add_argument("--max-model-len", type=int, default=8192, help="tokens of the longest prompt and completion")
    parser.add_argument("--max-num-seqs", type=int, default=256, help="requests that run at a time")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9, help="share of the device's memory")
    parser.add_argument(
        "--dtype", choices=["bfloat16", "float16", "float32"], help="default: bfloat16; float32 on CPUs"
    )
    given, others = parser.parse_known_args(argv)
    if importlib.util.find_spec("vllm") is None:
        return refuse(
            "vLLM is not installed here: install it with bash scripts/setup.sh --extras vllm, and start this "
            "script with .venv-vllm/bin/python"
        )
    size = Size(given.max_model_len, given.max_num_seqs, given.gpu_memory_utilization)
    try:
        line = command(locate(given.model), size, given.dtype, others)
    except (OSError, ValueError) as error:
        return refuse(f"{given.model} is no model ({str(error).strip().splitlines()[0]})")
    os.execve(line[0], line, environment_of(dict(os.environ)))


def refuse(reason: str) -> int:
    print(f"vllm_server.py: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
