"""The environment of an agent: TRL's protocol, plus the hook with which a tree of rollouts forks it.

docs/agents.md shows how to write one. Imports neither torch nor the trainer.
"""

import inspect
from collections.abc import Callable
from typing import Any, Protocol

NOT_TOOLS = ("reset", "get_reward")
ACTION_FORMS = ("tags", "tool_calls")


class Environment(Protocol):
    """The world of one episode. Every other public method is a tool, which the model calls by name.

    A tool has type hints and a docstring with an `Args:` section (TRL builds its JSON schema from them) and returns the
    observation: a text, or a list of content parts ({"type": "text", "text": ...}, {"type": "image", "image": PIL
    picture}); anything else is converted with `str()`. Exceptions are shown to the model as a message, except an
    OSError or an exception with an attribute `kind`: those are infrastructure failures, and the branch ends as failed.

    Attributes, all optional:
        action_form: "tags" (default): `<search> text </search>` calls the tool `search` with its one argument;
            "tool_calls": the calls of the model's own chat template.
        tags: in the tag form, {"information": ..., "answer": ...} with other names for the two tags that are not
            tools.
    """

    def reset(self, **row: Any) -> None:
        """Starts an episode from the record's fields, `extra` included, and the run's environment_args.

        Raises ValueError for invalid settings; the run then ends with that message. TRL appends a returned text to the
        prompt; here the whole prompt is in the record's question, so returning a text is an error.
        """

    def get_reward(self) -> float:
        """Optional, for TRL's own trainer; here the task's rewards score the completion."""

    def _turn_reward(self) -> float:
        """Optional, called once after the calls of each turn: a reward of that turn, beside the completion's own."""

    def _fork(self) -> "Environment":
        """Optional: an independent copy, or itself if no tool changes its state. Without it, branches replay calls."""


def tools_of(environment: Any) -> dict[str, Callable]:
    """The tools by name, found as TRL 1.16 finds them: functions of the class without a leading underscore.

    >>> class Echo:
    ...     def reset(self, **row): ...
    ...     def say(self, text: str) -> str: return text
    ...     def _fork(self): return self
    >>> list(tools_of(Echo()))
    ['say']
    """
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    names = [name for name, _ in members if name not in NOT_TOOLS and not name.startswith("_")]
    return {name: getattr(environment, name) for name in names}
