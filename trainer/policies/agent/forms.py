"""How an agent's turn is parsed into actions and an observation is framed: with tags, or by the chat template."""

from __future__ import annotations

import json
from dataclasses import dataclass

from task.agents.text import UNREADABLE, in_thought, tag_action, without_thoughts
from task.errors import UserError

MARK = "@observation@"


@dataclass(frozen=True)
class Action:
    """A tool call; `arguments` is a dict by name or, in the tag form, the text of the only argument."""

    tool: str
    arguments: dict | str


@dataclass(frozen=True)
class Turn:
    """A parsed turn: tool calls, a final answer, or neither (`fault` is then the message to the model)."""

    actions: tuple[Action, ...] = ()
    answered: bool = False
    fault: str | None = None


class TagForm:
    """`<search> text </search>` calls the tool `search`; a closed answer ends the rollout; any other turn is invalid.

    Tags inside a thought are text: they neither act nor end the turn.

    Args:
        tools: the names of the environment's tools, which are their tags.
        thought_end: the text that closes a thought.
        tags: other names for `information` (the tag of observations) and `answer`.
    """

    every_turn = False  # a result stands inside the one turn that the chat template began

    def __init__(self, tools: list[str], thought_end: str, tags: dict[str, str]):
        self.tools, self.thought_end = tools, thought_end
        self.information, self.answer = tags.get("information", "information"), tags.get("answer", "answer")
        self.names = [*tools, self.information, self.answer]
        self.stops = tuple(f"</{name}>" for name in (*tools, self.answer))

    def in_thought(self, text: str) -> bool:
        """Whether an unfinished turn is inside a thought, where tags are text."""
        return in_thought(text, (*self.tools, self.answer), self.thought_end)

    def read(self, text: str, ended: str) -> Turn:
        found = tag_action(text, self.tools, self.answer, self.thought_end)
        if found is None:
            return Turn(fault=UNREADABLE)
        name, content = found
        return Turn(answered=True) if name == self.answer else Turn(actions=(Action(name, content),))

    def frame(self, count: int) -> list[str]:
        """The `count` + 1 texts around the results of `count` calls."""
        assert count == 1, "a turn in the tag form has one action"
        return [f"\n\n<{self.information}>", f"</{self.information}>\n\n"]

    def fault_message(self, fault: str) -> list[str]:
        """The text parts of the message to the model after an invalid turn."""
        return [fault]


class ToolCallForm:
    """The calls of the model's own chat template: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    A turn without a call outside its thoughts is the final answer. Results are framed as tool turns, as the template
    writes them; the model's own turn ended with its end token, so the frame starts after that token.

    Args:
        processor: has a chat template that supports tool turns.
        eos: the text of the token that ends a turn.
        thought_end: the text that closes a thought. Like the answer's tag it is removed from a tool's text, since
            rewards parse both.
        template_kwargs: what the template is told besides the turns.

    Raises UserError for a template that does not support tool turns.
    """

    stops = ()
    every_turn = True  # a result ends with the header of the next turn

    def __init__(self, processor, eos: str, thought_end: str = "</think>", template_kwargs: dict | None = None):
        self.processor, self.eos, self.thought_end = processor, eos, thought_end
        self.options = template_kwargs or {}
        self.names = ["tool_call", "tool_response", "answer"]
        self._frames: dict[int, list[str]] = {}
        self.frame(1)

    def read(self, text: str, ended: str) -> Turn:
        text = without_thoughts(text, ["tool_call"], self.thought_end)
        if "<tool_call>" not in text or ended == "length":
            return Turn(answered=True)
        actions = [self._action(piece) for piece in text.split("<tool_call>")[1:]]
        if None in actions:
            return Turn(fault='Error: a tool call must be one JSON object {"name": ..., "arguments": {...}}.')
        return Turn(actions=tuple(actions))

    def frame(self, count: int) -> list[str]:
        if count not in self._frames:
            self._frames[count] = self._rendered(count)
        return self._frames[count]

    def fault_message(self, fault: str) -> list[str]:
        return [fault.join(self.frame(1))]

    def _action(self, piece: str) -> Action | None:
        body, closed, _ = piece.partition("</tool_call>")
        try:
            call = json.loads(body)
            arguments = call.get("arguments", {})
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            valid = closed and isinstance(call["name"], str) and isinstance(arguments, dict)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return Action(call["name"], arguments) if valid else None

    def _rendered(self, count: int) -> list[str]:
        call = {"type": "function", "function": {"name": "tool", "arguments": {}}}
        before = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call] * count}]
        results = [{"role": "tool", "name": "tool", "content": MARK} for _ in range(count)]
        options = self.options | {"tokenize": False}
        try:
            prefix = self.processor.apply_chat_template(before, add_generation_prompt=False, **options)
            whole = self.processor.apply_chat_template(before + results, add_generation_prompt=True, **options)
        except Exception as error:
            raise UserError(
                f"the chat template cannot write tool turns ({type(error).__name__}: {error}): use a model whose "
                "template can, or an environment with action_form 'tags'"
            ) from error
        prefix = prefix[: prefix.rfind(self.eos) + len(self.eos)] if self.eos in prefix else prefix
        pieces = whole.removeprefix(prefix).split(MARK)
        if not whole.startswith(prefix) or len(pieces) != count + 1:
            raise UserError(
                "the chat template writes no tool turns after a turn of the assistant: use a model whose template "
                "does, or an environment with action_form 'tags'"
            )
        return pieces
