"""The parsers of `task.parsing.answers` under the name that earlier task files import."""

from task.parsing.answers import *  # noqa: F403
