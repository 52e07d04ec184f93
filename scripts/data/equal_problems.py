"""Problems of many records, as few lines: those that differ only in their place, numbers and paths are counted."""

import re

PLACES = 3  # further places named after the first
# Quoted text, unless it is a name such as 'image', which says what kind of problem it is; paths; numbers.
VARIABLE = re.compile(r"""'(?![A-Za-z_-]{1,30}')[^']*'|"[^"]*"|(?<![\w.])/\S+|\d+(?:\.\d+)?""")
FILE = re.compile(r"\S+ (?=line \d|row \d|record \d)")  # named once for all places in it


def grouped(problems: list[str]) -> list[str]:
    """One text per kind of problem, the most frequent first: the first such problem, then how many are like it.

    >>> grouped(["a line 1: answer is 3", "a line 2: id is missing", "a line 5: answer is 4"])
    ['a line 1: answer is 3 (and 1 like it: line 5)', 'a line 2: id is missing']
    """
    kinds: dict[str, list[str]] = {}
    for problem in problems:
        kinds.setdefault(VARIABLE.sub("…", problem.partition(": ")[2] or problem), []).append(problem)
    return [_described(alike) for alike in sorted(kinds.values(), key=len, reverse=True)]


def _described(alike: list[str]) -> str:
    first, *more = alike
    if not more:
        return first
    file = FILE.match(first)
    places = [problem.removeprefix(file[0] if file else "").partition(": ")[0] for problem in more[:PLACES]]
    return f"{first} (and {len(more)} like it: {', '.join(places)}{', ...' if len(more) > PLACES else ''})"
