"""Trees that fork inside nodes, branch off earlier points and wait for tools, against a dense pass from scratch."""

import random
import threading
import time

import numpy as np
import pytest
from engine_cases import assert_dense, assert_nothing_recomputed, assert_sound, encode, engine, grow, small_model

from trainer.engines import transformers_engine
from trainer.engines.growth import Growth
from trainer.engines.request_engine import RequestEngine
from trainer.engines.sampling import Sampling
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch, Call, Observed, Segment, Split
from trainer.tree import PROMPT


class Scripted(Policy):
    """A policy of functions; it expands and splits only if these are given."""

    leaves = 0

    def __init__(self, start, following=lambda tree, node, ended: None, expand=None, split=None):
        self.start, self.next = lambda: start, following
        self.expands, self.splits = expand is not None, split is not None
        if self.expands:
            self.expand = expand
        if self.splits:
            self.candidates = lambda entropies, logprobs: entropies > -1
            self.split = split


def rounds(*lists):
    """An `expand` that answers each tree with one list after the other, then with none."""
    asked = {}

    def expand(tree):
        asked[tree.prompt_id] = asked.get(tree.prompt_id, -1) + 1
        return lists[asked[tree.prompt_id]] if asked[tree.prompt_id] < len(lists) else []

    return expand


def agent(module, turns: int, observe, stop="e", count=2):
    """`count` chains of steps, each followed by what `observe(tree, node)` gives; the last turn ends the branch."""

    def following(tree, node, ended):
        if ended == "observed":
            return Segment("step", 1, 12, stop)
        steps = sum(tree.nodes[i].kind == "step" for i in tree.path(node))
        return Call(lambda: observe(tree, node)) if steps < turns and ended != "eos" else None

    return Scripted(Segment("step", count, 12, stop), following)


def text(module, words: str) -> Observed:
    return Observed(module.tokenizer.encode(words, add_special_tokens=False))


def picture(module, *size: int) -> Observed:
    shown = encode(module, "see", size)
    return Observed(list(shown.ids), media=shown, extra={"size": size})


@pytest.mark.parametrize("kind", ["text", "picture"])
def test_observations_of_different_lengths_equal_a_dense_pass(tiny_text, tiny_vlm, kind):
    setup = tiny_text if kind == "text" else tiny_vlm
    module = setup[0]
    prompts = [encode(module, "x" * 9, *([] if kind == "text" else [(84, 112)])), encode(module, "abc")]

    def observe(tree, node):
        turn = len(tree.path(node))
        if kind == "picture" and turn == 1:
            return picture(module, 56 + 28 * (node % 3), 84)
        return text(module, "so it is " * (1 + node % 5))

    grower = engine(setup)
    trees = grow(grower, prompts, agent(module, 4, observe, count=3))
    for prompt, tree in zip(prompts, trees, strict=True):
        assert_dense(setup, prompt, tree)
        assert_sound(tree, grower.eos_ids)
    observations = [node for tree in trees for node in tree.nodes if node.kind == "observation"]
    assert len(observations) == grower.stats["calls"] >= 8
    assert sum(len(node.token_ids) for node in observations) == grower.stats["observation_tokens"]
    assert_nothing_recomputed(grower)
    if kind == "picture":
        assert len({node.media.next_position for node in observations if node.media}) > 1


def test_an_observation_may_be_followed_by_another(tiny_vlm):
    """Text behind a picture, both fed in one pass."""
    module = tiny_vlm[0]

    def following(tree, node, ended):
        kinds = [tree.nodes[i].kind for i in tree.path(node)]
        if kinds == ["step"]:
            return Call(lambda: picture(module, 84, 56))
        if kinds == ["step", "observation"]:
            return Call(lambda: text(module, "and more"))
        return Segment("answer", 2, 9) if ended == "observed" else None

    prompt, grower = encode(module, "a", (56, 56)), engine(tiny_vlm)
    (tree,) = grow(grower, [prompt], Scripted(Segment("step", 2, 9), following))
    assert [node.kind for node in tree.nodes].count("answer") == 4
    assert_dense(tiny_vlm, prompt, tree)
    assert_nothing_recomputed(grower)


@pytest.mark.parametrize("fixture", ["tiny_text", "tiny_vlm"])
def test_branches_at_borders_cost_nothing(fixture, request):
    setup = request.getfixturevalue(fixture)
    prompts = [encode(setup[0], "x" * n, *([(84, 84)] if fixture == "tiny_vlm" else [])) for n in (3, 8)]
    answer, step = Segment("answer", 2, 12), Segment("step", 1, 10)
    policy = Scripted(
        Segment("thought", 2, 9),
        lambda tree, node, ended: step if tree.nodes[node].kind == "thought" else None,
        expand=rounds([Branch(0, answer), Branch(PROMPT, answer), Branch(1, step)], [Branch(0, step)]),
    )
    grower = engine(setup)
    trees = grow(grower, prompts, policy)
    for prompt, tree in zip(prompts, trees, strict=True):
        assert_dense(setup, prompt, tree)
        assert_sound(tree, grower.eos_ids)
        parents = [node.parent for node in tree.nodes]
        assert (parents.count(0), parents.count(1), parents.count(PROMPT)) == (4, 2, 4)
        assert [node.group for node in tree.nodes if node.parent == PROMPT] == [0, 1, 2, 3]
    assert_nothing_recomputed(grower)
    assert grower.stats["forks"] == 2 * 4


def test_a_branch_at_a_leafs_end_feeds_its_last_token_for_the_first_time(tiny_text):
    policy = Scripted(Segment("segment", 2, 6), expand=rounds([Branch(1, Segment("answer", 2, 6))]))
    grower, prompt = engine(tiny_text), encode(tiny_text[0], "abc")
    (tree,) = grow(grower, [prompt], policy)
    assert_dense(tiny_text, prompt, tree)
    assert_nothing_recomputed(grower)


@pytest.mark.parametrize("at", [1, 2, 5])
def test_splits_while_decoding_equal_a_dense_pass(tiny_text, at):
    """In the first token the siblings get the same parent; later the node ends before the token."""

    def split(tree, node, token_ids, entropy, logprob):
        return Split(3) if len(token_ids) == at and len(tree.path(node)) == 1 and len(tree.nodes) < 4 else None

    prompts = [encode(tiny_text[0], "x" * n) for n in (3, 8)]
    grower = engine(tiny_text)
    trees = grow(grower, prompts, Scripted(Segment("segment", 1, 12), split=split))
    for prompt, tree in zip(prompts, trees, strict=True):
        assert_dense(tiny_text, prompt, tree)
        assert_sound(tree, grower.eos_ids)
        assert len(tree.leaves()) == 3
        siblings = [tree.nodes[leaf] for leaf in tree.leaves()]
        assert {node.parent for node in siblings} == {PROMPT if at == 1 else 0}
        assert len({node.token_ids[0] for node in siblings}) == 3
        assert len({node.entropies[0] for node in siblings}) == 1
        assert all(len(tree.tokens(leaf)) == 12 for leaf in tree.leaves() if tree.nodes[leaf].status == "length")
    assert_nothing_recomputed(grower)
    assert grower.stats["forks"] == 2
    assert grower.stats["generated_tokens"] == sum(tree.unique_tokens() for tree in trees)


@pytest.mark.own_engine
def test_a_stop_that_a_split_cuts_in_two_still_ends_the_node(tiny_text):
    """`</think>` is several tokens: a fork between them leaves the end of it in the child."""
    module = tiny_text[0]
    end = module.tokenizer.encode("</think>", add_special_tokens=False)
    assert len(end) > 1

    def split(tree, node, token_ids, entropy, logprob):
        return Split(2) if len(token_ids) == len(end) and len(tree.nodes) == 1 else None

    ends = []
    policy = Scripted(
        Segment("thought", 1, 6, stop="</think>"), lambda tree, node, ended: ends.append((node, ended)), split=split
    )
    grower, written = engine(tiny_text), iter(end)
    sampler = grower.sampler

    class Writing:
        sampling = sampler.sampling

        def __call__(self, logits, history, distinct, **own):
            tokens, logprobs, entropies = sampler(logits, history, distinct=distinct, **own)
            token = next(written, None) if len(logits) == 1 and not distinct else None
            return (tokens if token is None else tokens * 0 + token), logprobs, entropies

    grower.sampler = Writing()
    (tree,) = grow(grower, [encode(module, "a")], policy)
    assert tree.nodes[0].token_ids + tree.nodes[1].token_ids == end
    assert ends[0] == (1, "stop")


def test_the_higher_entropy_is_asked_first_and_only_candidates_are(tiny_text):
    asked = []

    def split(tree, node, token_ids, entropy, logprob):
        asked.append((len(token_ids), entropy, tree.prompt_id))

    policy = Scripted(Segment("segment", 3, 6), split=split)
    policy.candidates = lambda entropies, logprobs: entropies > entropies.mean()
    grow(engine(tiny_text), [encode(tiny_text[0], "x" * n) for n in (3, 8)], policy)
    by_step = {}
    for step, entropy, _ in asked:
        by_step.setdefault(step, []).append(entropy)
    assert all(values == sorted(values, reverse=True) for values in by_step.values())
    assert len(by_step) > 2
    assert 0 < len(asked) < 36


def test_temperatures_side_by_side(tiny_text):
    """Rows of one batch sample at their segment's own temperature, greedy among them."""
    heat = {"thought": 1.0, "answer": 0.25, "step": 3.0, "segment": 0.0}

    def following(tree, node, ended):
        kinds = ["answer", "step", "segment"]
        return None if node >= 3 else Segment(kinds[node], 2, 10, temperature=heat[kinds[node]])

    prompt, grower = encode(tiny_text[0], "abc"), engine(tiny_text)
    (tree,) = grow(grower, [prompt], Scripted(Segment("thought", 3, 8), following))
    kinds = {}
    for node in tree.nodes:
        kinds.setdefault(node.kind, []).append(node.token_ids)
    assert len(kinds["segment"]) == 2 and kinds["segment"][0] == kinds["segment"][1]
    assert kinds["step"][0] != kinds["step"][1]
    assert_dense(tiny_text, prompt, tree, temperature=lambda node: heat[node.kind] or 1.0)


def test_top_k_side_by_side(tiny_text):
    """With the single most likely token the continuations of a node are all alike; its siblings' are not."""
    kept = {"thought": None, "answer": 1, "step": None}

    def following(tree, node, ended):
        kinds = ["answer", "step"]
        return None if node >= 2 else Segment(kinds[node], 3, 10, top_k=kept[kinds[node]])

    (tree,) = grow(engine(tiny_text), [encode(tiny_text[0], "abc")], Scripted(Segment("thought", 2, 8), following))
    kinds = {}
    for node in tree.nodes:
        kinds.setdefault(node.kind, []).append(tuple(node.token_ids))
    assert len(set(kinds["answer"])) == 1 and len(set(kinds["step"])) == 3
    assert {value for node in tree.nodes if node.kind == "answer" for value in node.logprobs} == {0.0}


def test_several_stops(tiny_text):
    module = tiny_text[0]
    policy = Scripted(Segment("step", 24, 30, stop=("a", "e", "o")))
    (tree,) = grow(engine(tiny_text), [encode(module, "abc")], policy)
    ends = [module.tokenizer.decode(node.token_ids) for node in tree.nodes]
    assert sum(node.status == "ok" for node in tree.nodes) > 8
    for node, words in zip(tree.nodes, ends, strict=True):
        before = module.tokenizer.decode(node.token_ids[:-1])
        assert not set("aeo") & set(before)
        assert (
            node.status == "length"
            or set("aeo") & set(words)
            or node.token_ids[-1] in module.eos_token_ids(tiny_text[2])
        )


def test_distinct_first_tokens_and_groups(tiny_text):
    """A group may be named; siblings of a distinct segment never start alike, at any temperature."""
    following = lambda tree, node, ended: Segment("answer", 6, 3, distinct=True, temperature=0.2) if node < 3 else None  # noqa: E731
    policy = Scripted(
        Segment("thought", 3, 5),
        following,
        expand=rounds(
            [Branch(PROMPT, Segment("segment", 2, 4, group=7, distinct=True)), Branch(0, Segment("answer", 1, 2))]
        ),
    )
    (tree,) = grow(engine(tiny_text), [encode(tiny_text[0], "abc")], policy)
    for thought in range(3):
        firsts = [node.token_ids[0] for node in tree.nodes if node.parent == thought][:6]
        assert len(set(firsts)) == 6
    assert [node.group for node in tree.nodes if node.parent == PROMPT] == [0, 1, 2, 7, 7]
    assert_sound(tree, tiny_text[0].eos_token_ids(tiny_text[2]))


def test_a_call_runs_while_others_decode(tiny_text):
    """The call of one row waits until the other has sampled six more tokens; only then does it answer."""
    sampled, go_on = [0], threading.Event()

    def progress(count):
        sampled[0] = count
        if count >= started[0] + 6:
            go_on.set()

    started = [10**9]

    def run():
        started[0] = sampled[0]
        assert go_on.wait(timeout=20)
        return text(tiny_text[0], "done")

    def following(tree, node, ended):
        if ended == "observed":
            return Segment("answer", 1, 4)
        return Call(run) if node == 0 and tree.prompt_id == "0" else None

    policy = Scripted(Segment("step", 1, 3), following)
    policy.next = lambda tree, node, ended: (
        Segment("segment", 1, 60) if tree.prompt_id == "1" and node == 0 else following(tree, node, ended)
    )
    prompts = [encode(tiny_text[0], "abc"), encode(tiny_text[0], "b")]
    first, second = grow(engine(tiny_text, progress=progress), prompts, policy, seed=3)
    assert [(node.kind, node.status) for node in first.nodes][1] == ("observation", "ok")
    assert len(second.nodes[1].token_ids) > 16
    assert_dense(tiny_text, prompts[0], first)


def test_a_failed_call_ends_its_branch_and_no_other(tiny_text):
    def observe(tree, node):
        if node == 0:
            raise RuntimeError("the cable is cut")
        return Observed([5], "failed", extra={"error": "timeout"}) if node == 1 else text(tiny_text[0], "fine")

    grower, prompt = engine(tiny_text), encode(tiny_text[0], "abc")
    (tree,) = grow(grower, [prompt], agent(tiny_text[0], 3, observe, count=4))
    failed = [node for node in tree.nodes if node.status == "failed"]
    assert [(node.parent, node.sampled) for node in failed] == [(0, False), (1, False)]
    assert failed[0].extra == {"error": "exception", "what": "RuntimeError: the cable is cut"}
    assert failed[0].token_ids == grower.eos_ids[:1]
    assert failed[1].extra == {"error": "timeout"}
    assert sum(node.kind == "observation" and node.status == "ok" for node in tree.nodes) >= 2
    assert_dense(tiny_text, prompt, tree)
    assert_sound(tree, grower.eos_ids)
    assert_nothing_recomputed(grower)


def test_same_seed_same_trees_however_late_a_call_is(tiny_text):
    prompts = [encode(tiny_text[0], "x" * n) for n in (3, 8)]
    trees = []
    for delay in (0.0, 0.03):
        choice = random.Random(delay)

        def observe(tree, node, delay=delay, choice=choice):
            time.sleep(delay * choice.random())
            return text(tiny_text[0], "so " * (1 + node % 3))

        trees.append(grow(engine(tiny_text), prompts, agent(tiny_text[0], 4, observe, count=4), seed=4))
    assert trees[0] == trees[1]
    assert sum(node.kind == "observation" for tree in trees[0] for node in tree.nodes) > 10


def test_no_more_calls_at_a_time_than_allowed(tiny_text):
    lock, now, most = threading.Lock(), [0], [0]

    def observe(tree, node):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        return text(tiny_text[0], "so")

    grow(engine(tiny_text, max_calls=3), [encode(tiny_text[0], "abc")], agent(tiny_text[0], 2, observe, count=9))
    assert 1 < most[0] <= 3


@pytest.mark.own_engine
def test_a_tree_is_forgotten_when_its_policy_is_done_with_it(tiny_text, monkeypatch):
    grown, held = [], []

    class Watched(Growth):
        def run(self):
            grown.append(self)
            super().run()

    monkeypatch.setattr(transformers_engine, "Growth", Watched)

    def expand(tree):
        held.append(sum(map(len, grown[-1].parked._states)))
        return []

    prompts = [encode(tiny_text[0], "x" * n) for n in (3, 8)]
    grow(engine(tiny_text), prompts, Scripted(Segment("segment", 2, 9), expand=expand))
    assert len(held) == 2 and all(held)
    grow(engine(tiny_text), prompts, agent(tiny_text[0], 3, lambda tree, node: text(tiny_text[0], "so")))
    for growth in grown:
        assert growth.parked._states == growth.parked._borders == [{}, {}]


class Anything(Policy):
    """Every decision at random: segments, calls, forks inside nodes, branches anywhere, in up to three rounds."""

    leaves = 0

    def __init__(self, module, choice, abilities):
        self.module, self.choice, self.rounds, self.temperature = module, choice, {}, {}
        self.expands, self.splits = "expand" in abilities, "split" in abilities

    def _segment(self):
        pick = self.choice
        kind = pick.choice(["thought", "answer", "step", "segment"])
        stop = pick.choice([None, "e", ("a", "t"), "th"])
        return Segment(kind, pick.randint(1, 3), pick.randint(1, 14), stop, distinct=pick.random() < 0.3)

    def start(self):
        self.first = getattr(self, "first", None) or self._segment()
        return self.first

    def next(self, tree, node, ended):
        if len(tree.path(node)) > 6 or len(tree.nodes) > 25 or ended == "eos":
            return None
        lot = self.choice.random()
        if lot < 0.35:
            words = "so it goes " * self.choice.randint(1, 4)
            status = "failed" if self.choice.random() < 0.1 else "ok"
            return Call(lambda: Observed(self.module.tokenizer.encode(words, add_special_tokens=False), status))
        return self._segment() if lot < 0.8 else None

    def candidates(self, entropies, logprobs):
        return entropies > np.median(entropies)

    def split(self, tree, node, token_ids, entropy, logprob):
        few = len(tree.nodes) < 25 and self.choice.random() < 0.15
        return Split(self.choice.randint(2, 3), self.choice.random() < 0.7) if few else None

    def expand(self, tree):
        self.rounds[tree.prompt_id] = self.rounds.get(tree.prompt_id, 0) + 1
        if self.rounds[tree.prompt_id] > 3:
            return []
        branches, leaves = [], set(tree.leaves())
        for _ in range(self.choice.randint(1, 3)):
            node = self.choice.randrange(-1, len(tree.nodes))
            ids = [0] if node == PROMPT else tree.nodes[node].token_ids
            goes_on = node not in leaves or tree.nodes[node].sampled
            if goes_on and ids[-1] not in self.module.eos_token_ids(self.module.processor):
                branches.append(Branch(node, self._segment()))
        return branches


@pytest.mark.parametrize("abilities", [(), ("split",), ("expand",), ("expand", "split")])
def test_random_policies(tiny_text, abilities):
    """A hundred random policies: every tree is sound, and equals a dense pass."""
    kinds = set()
    for seed in range(25):
        choice = random.Random(f"{abilities} {seed}")
        policy = Anything(tiny_text[0], choice, abilities)
        prompts = [encode(tiny_text[0], "x" * choice.randint(1, 20)) for _ in range(2)]
        grower = engine(tiny_text, max_prompts=choice.choice([None, 1]))
        trees = grow(grower, prompts, policy, seed)
        for prompt, tree in zip(prompts, trees, strict=True):
            assert_dense(tiny_text, prompt, tree)
            assert_sound(tree, grower.eos_ids)
            kinds |= {node.kind for node in tree.nodes}
        assert grower.stats["generated_tokens"] == sum(
            len(node.token_ids) for tree in trees for node in tree.nodes if node.sampled
        )
        if "expand" not in abilities or isinstance(grower, RequestEngine):
            assert_nothing_recomputed(grower)
        else:
            assert 0 <= grower.stats["recomputed_tokens"] <= grower.stats["forks"]
    assert "observation" in kinds


@pytest.mark.own_engine
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["llama", "sliding"])
def test_random_policies_on_other_models(tiny_text, family, attention):
    """A window shorter than the rollout: what is brought back must stand where it stood."""
    module, _, processor = tiny_text
    setup = (module, small_model(len(module.tokenizer), family, attention), processor)
    for seed in range(4):
        policy = Anything(module, random.Random(seed), ("expand", "split"))
        prompts = [encode(module, "x" * n) for n in (2, 17)]
        grower = engine(setup)
        for prompt, tree in zip(prompts, grow(grower, prompts, policy, seed), strict=True):
            assert_dense(setup, prompt, tree)
        assert grower.stats["forks"] + grower.stats["calls"] > 0


@pytest.mark.slow
def test_slow_tools_are_waited_for_together(tiny_text):
    """Half a second per call: at least three times faster than one call after the other."""

    def seconds(max_calls):
        def observe(tree, node):
            time.sleep(0.5)
            return text(tiny_text[0], "so")

        grower = engine(tiny_text, max_calls=max_calls)
        prompts = [encode(tiny_text[0], "x" * n) for n in (3, 8)]
        start = time.monotonic()
        trees = grow(grower, prompts, agent(tiny_text[0], 3, observe, count=4))
        return time.monotonic() - start, trees

    (together, trees), (alone, again) = seconds(16), seconds(1)
    assert trees == again
    assert alone > 3 * together


def test_repetition_penalty_follows_forks_and_observations(tiny_text):
    """At a huge penalty no path repeats a token it has seen, wherever it forked."""
    sampling = Sampling(temperature=0, repetition_penalty=1e6)

    def split(tree, node, token_ids, entropy, logprob):
        return Split(2) if len(token_ids) == 3 and len(tree.nodes) < 6 else None

    policy = agent(tiny_text[0], 2, lambda tree, node: text(tiny_text[0], "qu"), count=1)
    policy.splits, policy.split, policy.candidates = True, split, lambda entropies, logprobs: entropies > -1
    prompt = encode(tiny_text[0], "abc")
    (tree,) = grow(engine(tiny_text, sampling), [prompt], policy)
    assert len(tree.leaves()) > 2
    for leaf in tree.leaves():
        seen = set(prompt.ids)
        for node in (tree.nodes[i] for i in tree.path(leaf)):
            for token in node.token_ids:
                assert not node.sampled or token not in seen
                seen.add(token)
