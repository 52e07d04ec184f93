"""Rollouts on real models: every log-probability, token and position equals a dense pass over the same tokens."""

import random

import pytest
import torch
from engine_cases import assert_dense, assert_nothing_recomputed, encode, engine, grow, small_model
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig

from trainer.engines.request_engine import RequestEngine
from trainer.engines.sampling import Sampling
from trainer.policies.chain import ChainPolicy
from trainer.policies.thought_answer import ThoughtAnswerPolicy

THINK = ThoughtAnswerPolicy(3, 2, max_thought_length=36, max_answer_length=12, thought_end="</think>")


PICTURES = {
    "text": [[]],
    "one": [[(84, 112)]],
    "two": [[(84, 84), (140, 56)]],
    "mixed": [[(112, 84)], [], [(56, 84)] * 2],
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", PICTURES)
def test_log_probs_equal_a_dense_pass(tiny_vlm, kind, temperature):
    prompts = [encode(tiny_vlm[0], f"Where is it{'?' * i}", *sizes) for i, sizes in enumerate(PICTURES[kind])]
    trees = grow(engine(tiny_vlm, Sampling(temperature)), prompts, THINK)
    for prompt, tree in zip(prompts, trees, strict=True):
        assert len(tree.leaves()) >= 3
        assert_dense(tiny_vlm, prompt, tree)


def test_two_hundred_random_trees(tiny_text):
    """Answers continue the very tokens of their thought: their log-probabilities say so for each of 200 trees."""
    choice, forks = random.Random(0), 0
    for round_ in range(20):
        stop = choice.choice(["e", "a", "t", ">", "th"])
        policy = ThoughtAnswerPolicy(choice.randint(1, 4), choice.randint(1, 4), choice.randint(1, 30), 8, stop)
        prompts = [encode(tiny_text[0], "x" * choice.randint(1, 30)) for _ in range(10)]
        grower = engine(tiny_text, max_prompts=choice.choice([None, 5]))
        for prompt, tree in zip(prompts, grow(grower, prompts, policy, seed=round_), strict=True):
            assert_dense(tiny_text, prompt, tree, atol=1e-5)
            assert_well_formed(tree, policy, tiny_text)
            forks += len(tree.leaves()) > len([n for n in tree.nodes if n.kind == "thought"])
        assert_nothing_recomputed(grower)
    assert forks > 50


def assert_well_formed(tree, policy, setup):
    module, _, processor = setup
    eos, thoughts = set(module.eos_token_ids(processor)), policy.start().count
    assert sum(node.kind == "thought" for node in tree.nodes) == thoughts
    answers = [0] * len(tree.nodes)
    for node in tree.nodes:
        assert 1 <= len(node.token_ids) == len(node.logprobs) == len(node.entropies)
        assert not eos & set(node.token_ids[:-1])
        if node.kind == "answer":
            answers[node.parent] += 1
            assert node.status == ("ok" if node.token_ids[-1] in eos else "length")
            assert len(node.token_ids) == policy.answer.max_tokens or node.status == "ok"
        else:
            text = module.tokenizer.decode(node.token_ids)
            assert (node.status == "ok") == (policy.thought.stop in text)
            assert policy.thought.stop not in module.tokenizer.decode(node.token_ids[:-1])
    for i, node in enumerate(tree.nodes):
        closed = node.kind == "thought" and node.status == "ok"
        assert answers[i] == (policy.answer.count if closed else 0)


def test_greedy_chain_equals_transformers_generate(tiny_vlm, monkeypatch):
    module, model, processor = tiny_vlm
    # generate fills what equals a library default from here, and the checkpoint's says repetition_penalty 1.05
    monkeypatch.setattr(model, "generation_config", GenerationConfig())
    prompt = encode(module, "Move the gripper to the red cube.", (112, 140))
    ids = torch.tensor([prompt.ids])
    output = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == model.config.image_token_id).int(),
        **prompt.media,
        generation_config=GenerationConfig(
            do_sample=False,
            max_new_tokens=60,
            eos_token_id=module.eos_token_ids(processor),
            pad_token_id=module.tokenizer.pad_token_id,
        ),
    )
    (tree,) = grow(engine(tiny_vlm, Sampling(temperature=0)), [prompt], ChainPolicy(2, 60))
    wanted = output[0, len(prompt.ids) :].tolist()
    assert [node.token_ids for node in tree.nodes] == [wanted, wanted]
    assert len(wanted) > 10


@pytest.mark.own_engine
def test_neither_the_last_call_nor_config_use_cache_has_a_say(tiny_vlm, monkeypatch):
    """The model remembers the position offset of another call, and its config says not to cache."""
    module, model, _ = tiny_vlm
    prompts = [encode(module, "a", (84, 84)), encode(module, "b" * 9, (56, 112))]
    first = grow(engine(tiny_vlm), prompts, THINK)
    monkeypatch.setattr(model.model, "rope_deltas", torch.tensor([[-77], [5], [1234]]))
    monkeypatch.setattr(model.config.get_text_config(), "use_cache", False)
    assert grow(engine(tiny_vlm), prompts, THINK) == first


@pytest.mark.own_engine
def test_the_checkpoints_generation_config_has_no_say(tiny_vlm, monkeypatch):
    module, model, _ = tiny_vlm
    narrow = GenerationConfig(do_sample=True, top_k=1, top_p=0.001, temperature=1e-6, repetition_penalty=1.05)
    monkeypatch.setattr(model, "generation_config", narrow)
    prompt = encode(module, "Move the gripper to the red cube.", (112, 112))
    (tree,) = grow(engine(tiny_vlm), [prompt], ChainPolicy(32, 48))
    assert len({tuple(node.token_ids) for node in tree.nodes}) > 20
    (tree,) = grow(engine(tiny_vlm, Sampling(temperature=0)), [prompt], ChainPolicy(32, 48))
    assert len({tuple(node.token_ids) for node in tree.nodes}) == 1


def test_same_seed_same_trees(tiny_text):
    prompts = [encode(tiny_text[0], "x" * n) for n in (3, 8)]
    trees = [grow(engine(tiny_text), prompts, THINK, seed) for seed in (5, 5, 6)]
    assert trees[0] == trees[1] != trees[2]


@pytest.mark.own_engine
def test_forbidden_ids_never_come_though_the_model_wants_nothing_else(tiny_vlm, monkeypatch):
    module, model, processor = tiny_vlm
    forbidden = module.forbidden_token_ids(processor)
    bias = torch.zeros(model.lm_head.out_features)
    bias[forbidden] = 40.0
    monkeypatch.setitem(model.lm_head._parameters, "bias", torch.nn.Parameter(bias, requires_grad=False))
    assert module.tokenizer.convert_tokens_to_ids("<|image_pad|>") in forbidden
    trees = grow(engine(tiny_vlm), [encode(module, "a", (84, 84)), encode(module, "b")], THINK)
    assert not set(forbidden) & {token for tree in trees for node in tree.nodes for token in node.token_ids}


def test_repetition_penalty_looks_at_prompt_and_path_but_not_at_padding(tiny_text):
    """Alone and beside a longer prompt, greedy: the same tokens, none of them a repetition at a huge penalty."""
    module = tiny_text[0]
    sampling = Sampling(temperature=0, repetition_penalty=1e6)
    short, long = encode(module, "abc"), encode(module, "x" * 40)
    policy = ThoughtAnswerPolicy(2, 2, 12, 12, "e")
    alone = grow(engine(tiny_text, sampling), [short], policy)[0]
    beside = grow(engine(tiny_text, sampling), [short, long], policy)[0]
    assert [node.token_ids for node in alone.nodes] == [node.token_ids for node in beside.nodes]
    for leaf in alone.leaves():
        tokens = alone.tokens(leaf)
        assert len(set(tokens)) == len(tokens)
        assert not set(tokens) & set(short.ids)


def test_entropies_are_those_of_the_dense_distribution(tiny_text):
    module, model, processor = tiny_text
    prompt = encode(module, "abc")
    (tree,) = grow(engine(tiny_text, Sampling(temperature=0.8)), [prompt], ChainPolicy(1, 20))
    node = tree.nodes[0]
    with torch.no_grad():
        logits = model(torch.tensor([prompt.ids + node.token_ids])).logits[0, len(prompt.ids) - 1 : -1]
    logits[:, module.forbidden_token_ids(processor)] = -torch.inf
    wanted = torch.distributions.Categorical(logits=logits / 0.8)
    torch.testing.assert_close(torch.tensor(node.entropies), wanted.entropy(), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        torch.tensor(node.logprobs), wanted.log_prob(torch.tensor(node.token_ids)), atol=1e-4, rtol=0
    )


@pytest.mark.own_engine
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["llama", "sliding"])
def test_other_text_models_and_attentions(tiny_text, family, attention):
    """A sliding window shorter than the rollout, several rows of unequal prompts."""
    module, _, processor = tiny_text
    setup = (module, small_model(len(module.tokenizer), family, attention), processor)
    prompts = [encode(module, "x" * n) for n in (2, 17)]
    for prompt, tree in zip(prompts, grow(engine(setup), prompts, ThoughtAnswerPolicy(2, 2, 20, 20, "e")), strict=True):
        assert_dense(setup, prompt, tree)


def test_a_lora_model_grows_with_its_adapter(tiny_text, tiny_text_dir):
    module, _, processor = tiny_text
    base = module.load_model(str(tiny_text_dir), dtype="float32").eval()
    prompt = encode(module, "abc")
    before = grow(engine((module, base, processor)), [prompt], THINK)
    config = LoraConfig(r=4, target_modules=module.lora_target_modules(base), init_lora_weights=False)
    model = get_peft_model(base, config).eval()
    trees = grow(engine((module, model, processor)), [prompt], THINK)
    assert trees != before
    assert_dense((module, model, processor), prompt, trees[0])


@pytest.mark.own_engine
def test_train_mode_is_refused(tiny_text, tiny_text_dir):
    module, _, processor = tiny_text
    model = module.load_model(str(tiny_text_dir), dtype="float32").train()
    with pytest.raises(AssertionError, match="eval mode"):
        grow(engine((module, model, processor)), [encode(module, "a")], THINK)


def test_prompts_that_could_not_be_made_are_failed_trees(tiny_text):
    module, _, processor = tiny_text
    good = encode(module, "abc")
    trees = grow(engine(tiny_text), [None, good, None], THINK)
    assert [tree.prompt_id for tree in trees] == ["0", "1", "2"]
    for tree in (trees[0], trees[2]):
        (node,) = tree.nodes
        assert (node.kind, node.status, node.sampled) == ("thought", "failed", False)
        assert node.token_ids == module.eos_token_ids(processor)[:1]
    assert_dense(tiny_text, good, trees[1])
    assert [len(tree.nodes) for tree in grow(engine(tiny_text), [None, None], THINK)] == [1, 1]


def test_counters_and_progress(tiny_text):
    prompts = [encode(tiny_text[0], "x" * n) for n in (3, 8, 5)]
    told = []
    grower = engine(tiny_text, max_prompts=2, progress=told.append)
    for _ in range(2):
        told.clear()
        trees = grow(grower, prompts, THINK)
        unique = sum(tree.unique_tokens() for tree in trees)
        assert grower.stats["prompt_tokens"] == sum(len(prompt.ids) for prompt in prompts)
        assert grower.stats["generated_tokens"] == unique == told[-1]
        assert_nothing_recomputed(grower)
        assert told == sorted(told)
        prefills = 0 if isinstance(grower, RequestEngine) else 2  # those of requests are among their steps
        assert len(told) == grower.stats["steps"] + prefills
