"""Finds the first sampled token after which the decoded text contains a stop string.

Stop strings are text and rollouts are tokens: `</think>` can be three tokens of which the last has further characters,
and a character can be split over tokens. A table over the vocabulary says which tokens can be the last one of a match;
the tail of a row is decoded only when such a token is sampled.
"""

from __future__ import annotations

from functools import lru_cache

INCOMPLETE = "\ufffd"


class StopMatcher:
    """Tests token sequences for one stop string.

    Args:
        tokenizer: a transformers tokenizer.
        stop: the string, at least one character.
        vocab_size: rows of the model's output layer; may exceed the number of the tokenizer's tokens.

    Attributes:
        candidates: the tokens that can be the last one of a match.
    """

    def __init__(self, tokenizer, stop: str, vocab_size: int):
        assert stop, "an empty stop string would match every text"
        self.tokenizer, self.stop = tokenizer, stop
        texts = _token_texts(tokenizer, vocab_size)
        last = {stop[-1]} if stop[-1].isascii() else {stop[-1], INCOMPLETE}
        self.candidates = frozenset(token for token, text in enumerate(texts) if last & set(text))
        self.silent = {token for token, text in enumerate(texts) if not text}
        # Every other token has at least one byte; one more token protects a leading space from being stripped.
        self.tail = len(stop.encode()) + 1

    def matches(self, token_ids: list[int]) -> bool:
        """Whether the text of `token_ids` contains the stop string, if it did not before the last token."""
        tail = []
        for token in reversed(token_ids):
            if token not in self.silent:
                tail.append(token)
            if len(tail) == self.tail:
                break
        return self.stop in _decode(self.tokenizer, [tail[::-1]])[0]


@lru_cache(maxsize=16)
def stop_matcher(tokenizer, stop: str, vocab_size: int) -> StopMatcher:
    """The matcher of a tokenizer and a stop string; cached, since creating it decodes the whole vocabulary."""
    return StopMatcher(tokenizer, stop, vocab_size)


@lru_cache(maxsize=4)
def _token_texts(tokenizer, vocab_size: int) -> list[str]:
    """The text that each token adds after a letter (some tokenizers strip the leading space of a lone token)."""
    anchor = tokenizer.encode("a", add_special_tokens=False)
    start = len(_decode(tokenizer, [anchor])[0])
    return [text[start:] for text in _decode(tokenizer, [[*anchor, token] for token in range(vocab_size)])]


def _decode(tokenizer, rows: list[list[int]]) -> list[str]:
    return tokenizer.batch_decode(rows, skip_special_tokens=False, clean_up_tokenization_spaces=False)
