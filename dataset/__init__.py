"""Manifests, records and media -> rows."""

import task.command.packages  # noqa: F401
