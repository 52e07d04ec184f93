"""A real `vllm serve` that splits the model over two workers: exact before and after new weights, and trained on."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from engine_cases import assert_dense, assert_dense_entropies, assert_sound, dense, encode, grow
from paths import ROOT
from real_vllm_server import real_vllm_server
from trainer_cases import move, text_trainer

pytest.importorskip("vllm")

from vllm_cases import vllm_engine

from model.registry import module_for
from trainer.engines.request_engine import RequestEngine
from trainer.engines.sampling import Sampling
from trainer.policies.thought_answer import ThoughtAnswerPolicy

pytestmark = pytest.mark.slow

MODEL = ROOT / "scripts" / "demo" / "tiny_text_model"  # four heads, two key-value heads
THINK = ThoughtAnswerPolicy(4, 2, max_thought_length=40, max_answer_length=12, thought_end="p")


@pytest.fixture(scope="module")
def url():
    with real_vllm_server(MODEL, "--tensor-parallel-size", "2") as (url, _):
        yield url


@pytest.fixture(scope="module")
def setup(one_thread):
    """(module, model, tokenizer): the shipped model's layers with small random weights, which round little."""
    module = module_for(str(MODEL))
    model = module.load_model(str(MODEL), dtype="float32", attn_implementation="sdpa").eval()
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if "norm" not in name:
            weight.data.normal_(0, 0.02, generator=generator)
    return module, model, module.load_processor(str(MODEL))


def test_both_workers_compute_with_the_weights_that_were_sent_last(setup, url, tmp_path):
    """Log-probabilities and entropies are the policy's own, and trees are those of one worker under the same seed."""
    module, bare, tokenizer = setup
    served = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url, "max_prompt_length": 400}
    trainer = text_trainer(setup, tmp_path, **served)
    policy, ends = (module, trainer.model.eval(), tokenizer), trainer.eos_token_ids
    engine = RequestEngine(trainer.serving.requests, module.tokenizer, Sampling(), ends)
    prompts, seen = [encode(module, "Who wrote it? " * 5), encode(module, "One?")], []
    for _ in range(2):
        with torch.no_grad():
            trainer.serving.sync(trainer.model)
        trees = grow(engine, prompts, THINK)
        for prompt, tree in zip(prompts, trees, strict=True):
            assert_sound(tree, ends)
            assert_dense(policy, prompt, tree, atol=1e-4)
            assert_dense_entropies(policy, prompt, tree, atol=1e-4)
            assert rounding(policy, bare, prompt, tree) < 1e-5, "or 1e-4 would not tell rounding from a fault"
        seen.append([tree.tokens(leaf) for tree in trees for leaf in tree.leaves()])
        alone = grow(vllm_engine(policy, Sampling()), prompts, THINK)
        assert seen[-1] == [tree.tokens(leaf) for tree in alone for leaf in tree.leaves()]
        move(trainer.model, 0.02)
    assert len(seen[0]) == len(prompts) * 4 * 2 and seen[0] != seen[1]


def rounding(policy, bare, prompt, tree) -> float:
    """The largest difference between log-probabilities in float32 and in float64.

    `bare` is like the policy's model, without the trainer's wrapper of `forward`: a copy's would be the original's.
    """
    module, model, tokenizer = policy
    exact = copy.deepcopy(bare).double()
    exact.load_state_dict(model.state_dict())
    pairs = zip(dense(policy, prompt, tree), dense((module, exact, tokenizer), prompt, tree), strict=True)
    return max((single - double).abs().max().item() for single, double in pairs)


def test_a_run_trains_on_it_from_the_command_line(url, tmp_path):
    flags = ["--config", "config/recipes/tree_grpo_demo.yaml", "--output_dir", tmp_path, "--max_steps", 2]
    flags += ["--use_vllm", "true", "--vllm_mode", "server", "--vllm_server_base_url", url, "--max_prompt_length", 400]
    flags += ["--per_device_train_batch_size", 12, "--learning_rate", 1e-3, "--warmup_steps", 0]
    command = [sys.executable, "train.py", *map(str, flags)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    steps = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    gaps = [step["sampling/policy_gap_max"] for step in steps if "sampling/policy_gap_max" in step]
    assert len(gaps) == 2 and max(gaps) < 1e-3
