"""Model families: loading, chat templates, media encoding."""

import task.command.packages  # noqa: F401
