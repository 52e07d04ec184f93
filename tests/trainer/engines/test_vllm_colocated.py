"""vLLM in this process: weights and caches after an update, pictures, determinism, and what it leaves as it was."""

import copy
import gc
import os
import random

import numpy as np
import pytest
import torch
from engine_cases import assert_dense, encode, grow
from peft import LoraConfig, get_peft_model

pytest.importorskip("vllm")

from vllm_cases import SIZE, colocated, vllm_engine

from task.errors import UserError
from trainer.engines.request_engine import RequestEngine
from trainer.engines.requests import Draw, Request
from trainer.engines.sampling import Sampling
from trainer.engines.serving import Serving
from trainer.engines.vllm.start import check_architecture, lora_settings, start
from trainer.engines.weights import whole_weights
from trainer.policies.policy import Policy
from trainer.policies.segment import Segment
from trainer.policies.thought_answer import ThoughtAnswerPolicy

THINK = ThoughtAnswerPolicy(3, 2, max_thought_length=36, max_answer_length=12, thought_end="</think>")


def changed(setup, part: str, amount=0.05):
    """The setup with other weights in all parameters whose name contains `part`."""
    module, model, processor = setup
    model, numbers = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if part in name:
                weight += amount * torch.randn(weight.shape, generator=numbers)
    return module, model, processor


def snapshot(model) -> dict:
    return {name: weight.clone() for name, weight in model.state_dict().items()}


@pytest.mark.parametrize("part", ["", "visual", "language_model", "embed_tokens", "q_proj"])
def test_after_an_update_nothing_of_the_old_weights_is_left(tiny_vlm, part):
    """The same prompts before and after: keys, values and pictures of the old weights are in the caches."""
    prompts = [encode(tiny_vlm[0], "Where is it?", (84, 112)), encode(tiny_vlm[0], "x" * 60)]
    grow(vllm_engine(tiny_vlm, Sampling()), prompts, THINK)
    setup = changed(tiny_vlm, part)
    for prompt, tree in zip(prompts, grow(vllm_engine(setup, Sampling()), prompts, THINK), strict=True):
        assert_dense(setup, prompt, tree)


@pytest.mark.parametrize("vision", [False, True])
def test_an_adapter_is_added_outside_the_model(tiny_vlm, vision):
    """A hundred syncs leave the trainer's weights as they are, bit for bit; the first and the last are exact."""
    module, model, processor = tiny_vlm
    targets = module.lora_target_modules(model, vision=vision)
    peft = get_peft_model(copy.deepcopy(model), LoraConfig(r=4, target_modules=targets, init_lora_weights=False)).eval()
    setup, before, prompt = (module, peft, processor), snapshot(peft), encode(module, "Where?", (84, 84))
    requests = colocated(tiny_vlm)
    serving = Serving(requests, torch.float32, shown=False)
    engine = vllm_engine(tiny_vlm, Sampling())
    with torch.no_grad():
        for _ in range(100):
            serving.sync(peft)
    assert_dense(setup, prompt, grow(engine, [prompt], THINK)[0])
    assert snapshot(peft).keys() == before.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in snapshot(peft).items())


def test_a_young_adapter_beside_weights_in_bfloat16_is_sent_alone(tiny_text):
    """With B of 1e-4 the sum in bfloat16 would lose most of the adapter; two syncs differ as the adapters do."""
    module, model, processor = tiny_text
    low = copy.deepcopy(model).to(torch.bfloat16)
    targets = module.lora_target_modules(low)
    peft = get_peft_model(low, LoraConfig(r=8, target_modules=targets), autocast_adapter_dtype=True).eval()
    ends, forbidden = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
    requests = start(low.config, processor, torch.bfloat16, SIZE, ends, forbidden, **lora_settings(peft))
    serving, prompt = Serving(requests, torch.bfloat16, shown=False), encode(module, "abc")
    ids = torch.tensor([prompt.ids])

    def logprob():
        draw = Draw(1, 0.0, 0, 1.0, 0.0, 1.0)
        requests.add(Request(f"{requests.version}", prompt.ids, [], 1, draw))
        return requests.step()[0]

    for scale in (0.0, 1e-4, 0.05):
        with torch.no_grad():
            for name, weight in peft.named_parameters():
                if "lora_B" in name:
                    weight.copy_(scale * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)))
            serving.sync(peft)
            logits = peft(ids).logits[0, -1].float()
        logits[forbidden] = -torch.inf
        found = logprob()
        assert found.logprob == pytest.approx(logits.log_softmax(-1)[found.token_id].item(), abs=0.03)
    assert requests.lora.lora_int_id == 3 + 1  # the weights below it were the first version


def test_pictures_are_encoded_once_and_ids_come_back_as_sent(tiny_vlm, monkeypatch):
    module = tiny_vlm[0]
    engine, prompt = vllm_engine(tiny_vlm, Sampling()), encode(module, "Where?", (84, 112), (56, 84))
    worker = engine.requests.engine.model_executor.driver_worker.worker.model_runner
    encoded, tower = [], worker.model.visual.forward
    monkeypatch.setattr(worker.model.visual, "forward", lambda *a, **k: encoded.append(1) or tower(*a, **k))
    sent, add = {}, engine.requests.engine.add_request
    back, step = {}, engine.requests.engine.step

    def adding(name, given, *rest, **options):
        sent[name] = given
        return add(name, given, *rest, **options)

    def stepping():
        outputs = step()
        back.update({output.request_id: list(output.prompt_token_ids) for output in outputs})
        return outputs

    monkeypatch.setattr(engine.requests.engine, "add_request", adding)
    monkeypatch.setattr(engine.requests.engine, "step", stepping)
    (tree,) = grow(engine, [prompt], ThoughtAnswerPolicy(3, 2, 36, 12, "e"))
    assert_dense(tiny_vlm, prompt, tree)
    assert len(encoded) == 1  # both pictures in one call, for all requests
    assert len(back) == engine.stats["requests"] > 3
    assert all(back[name] == list(sent[name]["prompt_token_ids"]) for name in back)


class Fixed(Policy):
    """Four thoughts of 128 tokens, and four answers of 32 tokens after each."""

    leaves = 16

    def start(self):
        return Segment("thought", 4, 128)

    def next(self, tree, node, ended):
        return Segment("answer", 4, 32) if tree.nodes[node].kind == "thought" else None


@pytest.mark.parametrize(("block", "computed"), [(32, 728), (128, 1944)])
def test_computed_tokens_are_those_of_full_blocks(tiny_vlm, block, computed):
    """A prompt of 462 tokens with a picture of 40 x 40 patches: computed once, each path's end once per open block."""
    module, model, processor = tiny_vlm
    prompt = encode(module, "a" * 41, (560, 560))
    assert len(prompt.ids) == 462 and prompt.media["image_grid_thw"].tolist() == [[1, 40, 40]]
    forbidden, ends = module.forbidden_token_ids(processor), module.eos_token_ids(processor)
    never, forbidden = forbidden[:1], [*forbidden, *ends]  # no completion ends early
    requests = start(model.config, processor, torch.float32, SIZE, never, forbidden, block_size=block)
    with torch.no_grad():
        requests.load(whole_weights(model))
    engine = RequestEngine(requests, module.tokenizer, Sampling(), never)
    (tree,) = grow(engine, [prompt], Fixed())
    assert tree.unique_tokens() == 4 * 128 + 16 * 32
    assert (engine.stats["requests"], engine.stats["sent_tokens"]) == (20, 462 * 20 + 128 * 16)
    assert engine.stats["computed_tokens"] == computed
    assert engine.stats["cached_tokens"] >= engine.stats["reusable_tokens"]


def test_a_request_does_not_depend_on_what_is_cached_or_beside_it(tiny_vlm):
    prompts = [encode(tiny_vlm[0], "x" * n, (84, 56 + n)) for n in (5, 28, 56)]
    engine = vllm_engine(tiny_vlm, Sampling())
    together = grow(engine, prompts, THINK)
    assert grow(engine, prompts, THINK) == together  # all of it cached
    assert grow(engine, prompts[:1], THINK)[0] == together[0]


def test_starting_leaves_the_process_as_it_was(tiny_text):
    module, model, processor = tiny_text
    ends, forbidden = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
    torch.manual_seed(5), np.random.seed(5), random.seed(5)

    def state():
        numbers = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
        return dict(os.environ), *numbers, torch.get_num_threads(), torch.set_num_threads, torch.get_default_dtype()

    before = state()
    requests = start(model.config, processor, torch.float32, SIZE, ends, forbidden)
    assert state() == before and gc.get_freeze_count() == 0
    with torch.no_grad():
        requests.load(whole_weights(model))
    requests.add(Request("a", [5, 6], [], 3, Draw(1, 1.0, 0, 1.0, 0.0, 1.0)))
    before = state()
    while not requests.step():
        pass
    assert state() == before
    with pytest.raises(RuntimeError, match="requests are running while weights are replaced"):
        requests.load(whole_weights(model))
    requests.abort(["a"])
    with pytest.raises(UserError, match="of 1025 tokens do not fit into vllm_max_model_length=1024"):
        requests.add(Request("b", [5] * 1000, [], 25, Draw(1, 1.0, 0, 1.0, 0.0, 1.0)))


def test_models_that_vllm_computes_differently_are_refused(tiny_text):
    config = copy.deepcopy(tiny_text[1].config)
    config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.raises(UserError, match="layers of kind full_attention and sliding_attention, which vLLM computes"):
        check_architecture(config)
    config = copy.deepcopy(tiny_text[1].config)
    config.hidden_size = 32
    with pytest.raises(UserError, match="the attention heads have 16 dimensions, and vLLM on a CPU takes 32, 64"):
        check_architecture(config)
