"""How rows end, fork and leave, on a model that reads its own history out of the cache and follows a script."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer

from model.vlm_module import EncodedPrompt
from trainer.engines.live_rows import LiveRows
from trainer.engines.sampling import Sampling
from trainer.engines.stop_strings import stop_matcher
from trainer.engines.transformers_engine import TransformersEngine
from trainer.policies.chain import ChainPolicy
from trainer.policies.policy import Policy
from trainer.policies.segment import Segment
from trainer.policies.thought_answer import ThoughtAnswerPolicy
from trainer.tree import PROMPT, Tree

VOCAB, EOS = 700, 690


class ScriptedModel(torch.nn.Module):
    """Stores token ids as its keys; `script` maps a row's history (prompt and path) to the next token.

    Records rows, length and history of each call, so a test sees what the engine fed and kept.
    """

    device = torch.device("cpu")

    def __init__(self, script, pad_id: int):
        super().__init__()
        self.script, self.pad_id, self.calls = script, pad_id, []
        self.config = SimpleNamespace(get_text_config=lambda: self)
        self.vocab_size, self._attn_implementation = VOCAB, "sdpa"

    def forward(self, input_ids, attention_mask, position_ids, past_key_values, use_cache, logits_to_keep):
        keys = input_ids[:, None, :, None].float()
        keys, _ = past_key_values.update(keys, position_ids[:, None, :, None].float(), 0)
        histories = [[int(token) for token in row if token != self.pad_id] for row in keys[:, 0, :, 0]]
        self.calls.append(SimpleNamespace(ids=input_ids, positions=position_ids, length=keys.shape[2], rows=histories))
        logits = torch.full((len(histories), 1, VOCAB), -1e9)
        for row, history in enumerate(histories):
            tokens = self.script(history)
            logits[row, 0, tokens] = 0.0
        return SimpleNamespace(logits=logits)


@dataclass
class Stage:
    """A tokenizer, and prompts told apart by their first token."""

    tokenizer: object

    def spell(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prompt(self, *ids: int) -> EncodedPrompt:
        return EncodedPrompt(list(ids), torch.arange(len(ids)), len(ids))

    def grow(self, script, prompts, policy, **options):
        self.model = ScriptedModel(script, self.tokenizer.pad_token_id).eval()
        module = SimpleNamespace(has_fixed_features=lambda model: False, batch_media=lambda prompts, device: {})
        self.engine = TransformersEngine(self.model, module, self.tokenizer, Sampling(), [EOS], [], **options)
        torch.manual_seed(0)
        return self.engine.grow(prompts, policy, [str(i) for i in range(len(prompts))])


@pytest.fixture(scope="module")
def stage(tiny_model_dir, one_thread):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    assert len(tokenizer) <= EOS
    return Stage(tokenizer)


def then(lines: dict[int, list[int]], prompt_length: int = 1):
    """A script: each prompt (by its first token) has its line, and after the line comes the end of sequence."""

    def script(history):
        said = len(history) - prompt_length
        line = lines[history[0]]
        return [line[said]] if said < len(line) else [EOS]

    return script


def test_each_row_ends_at_its_own_stop(stage):
    """One thought closes after few tokens, the other after many; the answers of the first do not wait."""
    end, letter = stage.spell("</think>"), stage.spell("a")[0]
    short, long = [letter] * 2 + end, [letter] * 9 + end
    policy = ThoughtAnswerPolicy(1, 3, 50, 50, "</think>")
    trees = stage.grow(then({5: [*short, 7, 7], 6: [*long, 8]}), [stage.prompt(5), stage.prompt(6)], policy)
    assert [node.token_ids for node in trees[0].nodes] == [short, *[[7, 7, EOS]] * 3]
    assert [node.token_ids for node in trees[1].nodes] == [long, *[[8, EOS]] * 3]
    assert {node.status for tree in trees for node in tree.nodes} == {"ok"}
    sizes = [len(call.rows) for call in stage.model.calls]
    closing, leaving = len(short), len(short) + 3
    assert sizes[: closing + 1] == [2] * (closing + 1)
    assert sizes[closing + 1 : leaving] == [4] * 2
    assert sizes[leaving:] == [1] * (len(long) + 1 - leaving) + [3] * (len(sizes) - len(long) - 1)


def test_a_stop_at_which_a_segment_goes_on_ends_nothing(stage):
    end = stage.spell("</think>")
    asked = []

    def goes_on(token_ids):
        asked.append(len(token_ids))
        return len(asked) == 1

    policy = ThoughtAnswerPolicy(1, 1, 50, 50, "</think>")
    policy.thought = Segment("thought", 1, 50, "</think>", goes_on)
    (tree,) = stage.grow(then({5: [*end, 7, *end, 8]}), [stage.prompt(5)], policy)
    assert [node.token_ids for node in tree.nodes] == [[*end, 7, *end], [8, EOS]]
    assert asked == [len(end), 2 * len(end) + 1]


def test_every_row_feeds_its_own_history_once(stage):
    """Each call sees just the prompt and the path of the row, the closing token is fed once, nothing twice."""
    end = stage.spell("</think>")
    policy = ThoughtAnswerPolicy(3, 4, 30, 9, "</think>")

    def script(history):
        inner = history[2:]
        if inner[-len(end) :] == end:
            return [11, 12, 13]
        for done in range(len(end) - 1, 0, -1):
            if inner[-done:] == end[:done]:
                return [end[done]]
        return [end[0], 21, 22] if not set(inner) & {11, 12, 13} else [11, 12, 13, EOS]

    prompts = [stage.prompt(5, 1), stage.prompt(6, 1)]
    trees = stage.grow(script, prompts, policy)
    fed = sum(len(call.rows) for call in stage.model.calls[1:])
    leaves = sum(len(tree.leaves()) for tree in trees)
    assert fed == sum(tree.unique_tokens() for tree in trees) - leaves
    assert stage.engine.stats["recomputed_tokens"] == 0
    for first, tree in zip((5, 6), trees, strict=True):
        wanted = {tuple([first, 1, *tree.tokens(leaf)[:-1]]) for leaf in tree.leaves()}
        seen = {tuple(row) for call in stage.model.calls for row in call.rows if row[0] == first}
        assert wanted <= seen
        assert all(any(path[: len(row)] == row for path in wanted) for row in seen)


def test_the_cache_grows_by_one_slot_a_step_and_positions_follow_the_prompt(stage):
    prompts = [stage.prompt(5), stage.prompt(6, 6, 6)]
    prompts[1].next_position = 9
    lines = {5: [1, 2, 3, 4], 6: [1, 2, 3]}
    script = then(lines)
    stage.grow(lambda h: script(h if h[0] == 5 else h[2:]), prompts, ChainPolicy(2, 20))
    assert [call.length for call in stage.model.calls] == list(range(3, 3 + len(stage.model.calls)))
    assert stage.model.calls[0].positions.tolist() == [[0, 0, 0], [0, 1, 2]]
    for depth, call in enumerate(stage.model.calls[1:]):
        assert call.positions.flatten().tolist() == [{5: 1, 6: 9}[row[0]] + depth for row in call.rows]


def test_the_history_of_a_row_holds_no_padding(stage):
    """What the repetition penalty looks at: a short prompt beside a long one must not penalise the padding token."""
    trees, matcher = [Tree("0"), Tree("1")], partial(stop_matcher, stage.tokenizer, vocab_size=VOCAB)
    rows = LiveRows(trees, Segment("segment", 1, 5), [EOS], matcher)
    rows.fork()
    rows.append([1, 2], [0.0, 0.0], [0.0, 0.0])
    prompts = [stage.prompt(5, 6), stage.prompt(7, 8, 9, 10)]
    assert rows.history(prompts) == [[5, 5, 5, 6, 1], [7, 8, 9, 10, 2]]
    rows.split(1, 2)
    assert trees[1].nodes[0].parent == trees[1].nodes[1].parent == PROMPT
    rows.append([3], [0.0], [0.0], first=2)
    assert [row[-1] for row in rows.history(prompts)] == [1, 2, 3]


def test_unclosed_thoughts_are_leaves_of_their_own(stage):
    """One row ends the sequence inside its thought, one runs into the limit, one closes."""
    end = stage.spell("</think>")
    lines = {5: [1, 2], 6: [1] * 40, 7: [*end, 3]}
    policy = ThoughtAnswerPolicy(1, 2, 8, 8, "</think>")
    trees = stage.grow(then(lines), [stage.prompt(i) for i in lines], policy)
    assert [[(node.kind, node.status) for node in tree.nodes] for tree in trees] == [
        [("thought", "unclosed")],
        [("thought", "unclosed")],
        [("thought", "ok"), ("answer", "ok"), ("answer", "ok")],
    ]
    assert trees[0].nodes[0].token_ids == [1, 2, EOS]
    assert trees[1].nodes[0].token_ids == [1] * 8


def test_an_answer_cut_at_its_limit_says_so(stage):
    end = stage.spell("</think>")
    (tree,) = stage.grow(then({5: [*end, *[3] * 40]}), [stage.prompt(5)], ThoughtAnswerPolicy(1, 1, 20, 6, "</think>"))
    assert [(node.kind, node.status, len(node.token_ids)) for node in tree.nodes] == [
        ("thought", "ok", len(end)),
        ("answer", "length", 6),
    ]


def test_closing_at_the_very_limit_counts_as_closed(stage):
    end = stage.spell("</think>")
    policy = ThoughtAnswerPolicy(1, 1, len(end), 4, "</think>")
    (tree,) = stage.grow(then({5: [*end, 3]}), [stage.prompt(5)], policy)
    assert [node.status for node in tree.nodes] == ["ok", "ok"]


def test_a_token_that_carries_more_than_the_stop_stays_whole(stage):
    """With `<` as the stop, the piece `</` ends the thought; its rest belongs to the thought."""
    (piece,) = stage.spell("</")
    (tree,) = stage.grow(then({5: [1, piece, 3]}), [stage.prompt(5)], ThoughtAnswerPolicy(1, 1, 9, 9, "<"))
    assert [node.token_ids for node in tree.nodes] == [[1, piece], [3, EOS]]


def test_a_stop_in_the_prompt_or_thought_does_not_end_the_answer(stage):
    end = stage.spell("</think>")
    prompts = [stage.prompt(*end)]
    policy = ThoughtAnswerPolicy(1, 1, 20, 20, "</think>")
    (tree,) = stage.grow(then({end[0]: [1, *end, 2, *end, 3]}, prompt_length=len(end)), prompts, policy)
    assert [node.token_ids for node in tree.nodes] == [[1, *end], [2, *end, 3, EOS]]


def test_siblings_draw_their_own_first_token(stage):
    """One row of logits after the closing token serves all children, who still differ."""
    end = stage.spell("</think>")
    script = then({5: end})
    policy = ThoughtAnswerPolicy(1, 64, 20, 1, "</think>")
    (tree,) = stage.grow(
        lambda h: script(h) if len(h) <= len(end) else list(range(100, 200)), [stage.prompt(5)], policy
    )
    firsts = {node.token_ids[0] for node in tree.nodes[1:]}
    assert 30 < len(firsts) <= 64
    assert firsts <= set(range(100, 200))
    assert [len(call.rows) for call in stage.model.calls] == [1] * (len(end) + 1)


def test_a_policy_may_fork_deeper_and_with_other_stops(stage):
    """Three levels, two stop strings in one batch: the engine knows nothing of thoughts."""
    a, b = stage.spell("a")[0], stage.spell("b")[0]

    class Steps(Policy):
        leaves = 4

        def start(self):
            return Segment("step", 1, 9, stop="a")

        def next(self, tree, node_index, ended):
            depth = len(tree.path(node_index))
            return {1: Segment("step", 2, 9, stop="b"), 2: Segment("step", 2, 9)}.get(depth)

    trees = stage.grow(then({5: [1, a, b, 2], 6: [a, 1, 1, b]}), [stage.prompt(5), stage.prompt(6)], Steps())
    for tree, rows in zip(trees, ([[1, a], [b], [2, EOS]], [[a], [1, 1, b], [EOS]]), strict=True):
        assert len(tree.leaves()) == 4
        for leaf in tree.leaves():
            assert [tree.nodes[i].token_ids for i in tree.path(leaf)] == rows


def test_chunks_of_prompts_grow_the_same_trees(stage):
    lines = {i: [i, i + 1, i + 2][: 1 + i % 3] for i in range(5, 12)}
    prompts = [stage.prompt(i) for i in lines]
    together = stage.grow(then(lines), prompts, ChainPolicy(2, 9))
    assert stage.grow(then(lines), prompts, ChainPolicy(2, 9), max_prompts=3) == together
    assert max(len(call.ids) for call in stage.model.calls) == 6
