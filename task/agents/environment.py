"""What an agent acts in: TRL's environment protocol, and the hook by which a tree of rollouts forks it.

docs/agents.md shows how to write one. Imports neither torch nor anything of the trainer.
"""

import inspect
from collections.abc import Callable
from typing import Any, Protocol

NOT_TOOLS = ("reset", "get_reward")
ACTION_FORMS = ("tags", "tool_calls")


class Environment(Protocol):
    """One episode's world. Every other public method is a tool: the model calls it by its name.

    A tool has type hints and a docstring with an `Args:` section (TRL makes its JSON schema of them) and returns the
    observation: a text, or a list of content parts ({"type": "text", "text": ...}, {"type": "image", "image": PIL
    picture}); anything else is shown as `str()` writes it. What it raises is shown to the model as a message, unless it
    is an OSError or has an attribute `kind`: those are failures of the machinery, and the branch ends as failed.

    Attributes, all optional:
        action_form: "tags" (default): `<search> text </search>` calls the tool `search` with its one argument;
            "tool_calls": the calls of the model's own chat template.
        tags: in the tag form, {"information": ..., "answer": ...} with other names for the two tags that belong to no
            tool.
    """

    def reset(self, **row: Any) -> None:
        """Starts the episode of a record: its fields, those of `extra` among them, and the run's environment_args.

        Raises ValueError for settings that cannot work; the run then ends with that sentence. TRL appends a returned
        text to the prompt; here the record's question holds all of the prompt, so a text is refused.
        """

    def get_reward(self) -> float:
        """Optional, for TRL's own trainer; here the task's rewards score the completion."""

    def _fork(self) -> "Environment":
        """Optional: an independent copy, or itself if no tool changes anything. Without it a branch is replayed."""


def tools_of(environment: Any) -> dict[str, Callable]:
    """The tools by name, found as TRL 1.16 finds them: functions of the class whose names have no underscore before.

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
