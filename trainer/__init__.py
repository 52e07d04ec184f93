"""Rollout trees and the training on them."""

import task.command.packages  # noqa: F401
