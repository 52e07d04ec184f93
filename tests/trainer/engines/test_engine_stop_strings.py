"""Where a stop string is found in sampled tokens."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from trainer.engines.stop_strings import StopMatcher, stop_matcher


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir):
    return AutoTokenizer.from_pretrained(tiny_model_dir)


@pytest.fixture(scope="module")
def bytewise():
    """Byte-level tokens by hand: some end in the middle of a letter, one holds a whole stop string and more."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    spell = dict(zip(range(256), byte_symbols(), strict=True))
    pieces = ["</think>So", "k>", "é>x", "nk", ">>", "界>", " </"]
    pieces = ["".join(spell[byte] for byte in piece.encode()) for piece in pieces]
    pieces.append(spell[0xC3] + spell[0xA9] + spell[0xC3])
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(symbols + pieces))}
    inner = Tokenizer(models.BPE(vocabulary, [], unk_token=None))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def byte_symbols() -> list[str]:
    """The printable stand-in of every byte in byte-level BPE: printable Latin-1 as it is, the rest from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def first_hit(matcher: StopMatcher, token_ids: list[int]) -> int | None:
    """Tokens up to the stop, as the engine asks: the table first, the text only for candidates."""
    for end in range(1, len(token_ids) + 1):
        if token_ids[end - 1] in matcher.candidates and matcher.matches(token_ids[:end]):
            return end
    return None


def slow_hit(tokenizer, stop: str, token_ids: list[int]) -> int | None:
    for end in range(1, len(token_ids) + 1):
        if stop in tokenizer.decode(token_ids[:end], clean_up_tokenization_spaces=False):
            return end
    return None


@pytest.mark.parametrize("stop", ["</think>", ">", "e", "</analysis>", "\n", " "])
def test_the_thought_ends_where_its_text_first_holds_the_stop(tokenizer, stop):
    ids = tokenizer.encode(f"<think>one here</think>two</analysis>\n{stop} and more{stop}", add_special_tokens=False)
    matcher = stop_matcher(tokenizer, stop, len(tokenizer))
    assert first_hit(matcher, ids) == slow_hit(tokenizer, stop, ids)
    assert first_hit(matcher, ids) is not None


@pytest.mark.parametrize("stop", ["</think>", ">", "é", "é>", "世界", "界>", "nk>", "x"])
def test_random_tokens_agree_with_decoding_everything(bytewise, stop):
    """Tokens that split letters, or go on after the stop, in any order."""
    matcher = StopMatcher(bytewise, stop, len(bytewise))
    near = [i for i in range(len(bytewise)) if set(bytewise.decode([i])) & set("</think>é世界x\ufffd")]
    draw = random.Random(stop)
    hits = 0
    for _ in range(400):
        ids = draw.choices(near, k=30)
        place = draw.randrange(20)
        ids[place:place] = bytewise.encode(stop) if draw.random() < 0.3 else []
        assert first_hit(matcher, ids) == slow_hit(bytewise, stop, ids), (ids, stop)
        hits += first_hit(matcher, ids) is not None
    assert hits > 100


def test_a_token_may_carry_the_stop_and_more_letters(bytewise):
    (token,) = [i for i in range(len(bytewise)) if bytewise.decode([i]) == "</think>So"]
    matcher = StopMatcher(bytewise, "</think>", len(bytewise))
    assert first_hit(matcher, [0, 1, token, 2]) == 3


def test_the_tail_that_is_decoded_does_not_grow_with_the_thought(tokenizer, monkeypatch):
    matcher = StopMatcher(tokenizer, "</think>", len(tokenizer))
    seen = []
    real = tokenizer.batch_decode
    monkeypatch.setattr(tokenizer, "batch_decode", lambda rows, **kw: seen.append(len(rows[0])) or real(rows, **kw))
    assert not matcher.matches(tokenizer.encode("word>" * 500))
    assert matcher.matches(tokenizer.encode("word" * 500 + "</think>"))
    assert max(seen) <= len("</think>") + 1


def test_ids_without_text_do_not_hide_the_stop(tokenizer):
    """A model may have more rows than the tokenizer has tokens; such ids decode to nothing."""
    silent = len(tokenizer) + 3
    matcher = StopMatcher(tokenizer, "</think>", len(tokenizer) + 8)
    ids = tokenizer.encode("so</think>", add_special_tokens=False)
    mixed = [token for sounded in ids for token in (*[silent] * 9, sounded)]
    assert silent not in matcher.candidates
    assert first_hit(matcher, mixed) == len(mixed)


def test_the_table_is_made_once_per_tokenizer_and_stop(tokenizer):
    assert stop_matcher(tokenizer, "</think>", 700) is stop_matcher(tokenizer, "</think>", 700)
    assert stop_matcher(tokenizer, "</think>", 700) is not stop_matcher(tokenizer, ">", 700)
