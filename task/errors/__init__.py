"""Errors that a user can correct, as opposed to faults of this project or of a library."""

from task.errors.library_refusals import library_refusals
from task.errors.place import place_of
from task.errors.user_error import UserError

__all__ = ["UserError", "library_refusals", "place_of"]
