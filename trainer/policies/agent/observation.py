"""Tool results as tokens: framed, cut to their limit, and unable to close a block or end a turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from task.agents.text import without_tags

CHARS_PER_TOKEN = 16  # only this many characters per allowed token of a long text are tokenised
LEAST = 8  # tokens of a text that is cut; with less room the branch ends


class NoRoom(ValueError):
    """The parts of an observation that must not be cut do not fit into the room left."""


@dataclass
class TurnOutcome:
    """The outcome of a turn's tool calls, kept on its observation node.

    Attributes:
        point: where the agent can act next; None if the branch ended.
        error: kind of the failure that ended the branch, one of `calls.FAILURES`.
        faults: kinds of the faults reported to the model (`calls.FAULTS`).
        calls: number of tool calls made.
        reused: calls not made because an equal turn at the same point had made them.
        replayed: calls repeated to rebuild an environment.
        invalid: whether the turn had no action.
        cut: whether the text was cut.
        seconds: duration of the calls.
    """

    point: Any = None
    error: str | None = None
    faults: list[str] = field(default_factory=list)
    calls: int = 0
    reused: int = 0
    replayed: int = 0
    invalid: bool = False
    cut: bool = False
    seconds: float = 0.0


class Framer:
    """Encodes observations; thread-safe.

    Args:
        module: the VLMModule (`encode_observation`).
        form: a TagForm or ToolCallForm; its `names` and `thought_end` say which tags a tool's text must not contain.
    """

    def __init__(self, module, form):
        self.module, self.form = module, form
        # split_special_tokens does not split added tokens of the chat template that are not special.
        added = (token for token in module.tokenizer.get_added_vocab() if not token.isspace())
        self.tokens = sorted(added, key=len, reverse=True)
        self._lock = Lock()

    def message(self, fault: str):
        """EncodedPrompt of the message to the model after a turn without an action."""
        return self._encode([{"type": "template", "text": text} for text in self.form.fault_message(fault)])

    def observation(self, results: Sequence[list[dict]], limit: int):
        """(EncodedPrompt, whether text was cut) of the results of a turn's calls, in at most `limit` tokens.

        Each result has an equal share of the room. NoRoom if what must not be cut (frame, pictures) does not fit.
        """
        frame = self.form.frame(len(results))
        rigid = [{"type": "template", "text": text} for text in frame]
        rigid += [part for result in results for part in result if part["type"] == "image"]
        room = (limit - len(self._encode(rigid).ids)) // len(results)
        texts = [[part for part in result if part["type"] == "text"] for result in results]
        if room < (LEAST if any(texts) else 0):
            raise NoRoom(f"no room for an observation in {limit} tokens")
        parts, cut = [{"type": "template", "text": frame[0]}], False
        for result, after in zip(results, frame[1:], strict=True):
            left = room
            for part in result:
                if part["type"] == "text":
                    part, used, shortened = self._fitted(part["text"], left)
                    left, cut = left - used, cut or shortened
                parts.append(part)
            parts.append({"type": "template", "text": after})
        return self._encode(parts), cut

    def _fitted(self, text: str, room: int) -> tuple[dict, int, bool]:
        """(the start of the cleaned text that fits into `room` tokens; its number of tokens; whether it was cut)."""
        start = text[: room * CHARS_PER_TOKEN]
        clean = self._clean(start)
        part = {"type": "text", "text": clean}
        ids = list(self._encode([part]).ids)
        cut, keep = len(start) < len(text) or len(ids) > room, room
        while len(ids) > room:
            part = {"type": "text", "text": self.module.tokenizer.decode(ids[:keep]).rstrip("\ufffd")}
            ids, keep = list(self._encode([part]).ids), keep - 1
        return part, len(ids), cut

    def _clean(self, text: str) -> str:
        for token in self.tokens:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return without_tags(text.encode("utf-8", "replace").decode(), self.form.names, self.form.thought_end)

    def _encode(self, parts: list[dict]):
        with self._lock:  # fast tokenizers are not thread-safe while they encode
            return self.module.encode_observation(parts)
