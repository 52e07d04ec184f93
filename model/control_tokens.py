"""Which tokens of a tokenizer stand for pictures, and which delimit turns.

Both are computed once per tokenizer: with the 6,400 added tokens of Gemma they take 0.2 s, and every prompt needs them.
"""

from __future__ import annotations

import functools
import re

# Added tokens that belong to a picture, a video or a sound: placeholders, borders, rows and columns of tiles.
MEDIA = re.compile(r"image|img|video|vision|audio|row_\d+_col_\d+", re.IGNORECASE)
# May be listed by tokenizers and written by templates, but do not delimit turns; questions may contain them.
BLOCK_TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>")


@functools.lru_cache(maxsize=8)
def media_tokens(tokenizer) -> dict[str, int]:
    """The added tokens of pictures, videos and sounds: text -> id."""
    return {text: id_ for text, id_ in tokenizer.get_added_vocab().items() if MEDIA.search(text)}


@functools.lru_cache(maxsize=8)
def turn_tokens(tokenizer, template: str) -> list[str]:
    """The tokens that delimit turns: the tokenizer's own, and the special ones that its chat template writes."""
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    written = [token for token in special if token in template and not MEDIA.search(token)]
    own = [token for token in (tokenizer.eos_token, tokenizer.bos_token) if token]
    return [*own, *(token for token in written if token not in BLOCK_TAGS)]
