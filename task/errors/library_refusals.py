"""Turns the errors with which a library rejects a setting into UserErrors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from task.errors.user_error import UserError


@contextmanager
def library_refusals(*kinds: type[Exception], checking: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Turns errors of these kinds into UserErrors with the same message, as long as `checking()` is true.

    For calls in which a library checks the user's settings, such as the constructor of a trainer or an optimiser.
    """
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        if not checking():
            raise
        raise UserError(str(error)) from error
