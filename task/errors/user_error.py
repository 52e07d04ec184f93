"""The base class of every error that a user can correct."""


class UserError(ValueError):
    """A user's mistake: data, settings, a task file, a model or a machine that does not fit.

    The message is one sentence: what was wrong, the rule, the way out. Every command prints it and exits with status 2;
    all other errors keep their traceback.
    """
