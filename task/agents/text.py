"""Parses what an agent writes in the tag form, and compares short answers as SQuAD does.

Every function accepts any text, raises nothing and runs in linear time. Rewards and the policy share these functions,
so that an action in a rollout is also one for the reward.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import fmean

from task.parsing.answers import thought_tags

# What an agent reads after a turn without an action, in the first person, because it continues the agent's own turn. It
# spells out no tag, because rewards parse it too.
UNREADABLE = (
    "\n\nI did not act in a form that can be carried out. A call goes between the opening and the closing tag of a "
    "tool, the final answer between the answer tags. I try again.\n\n"
)
MAX_CHARS = 100_000  # a longer answer is ignored
_NAMED = re.compile(r"</?([^\s<>/]+)>")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def tag_action(
    step: str, tools: Iterable[str], answer: str = "answer", thought_end: str = "</think>"
) -> tuple[str, str] | None:
    """(tag, content) of the first closed block of a step, of the tools' tags and the answer's; else None.

    Tags inside a thought are plain text. The content is stripped; an empty one is not an action.

    >>> tag_action("<think>the <search> tool</think><search> capital of France </search>", ["search"])
    ('search', 'capital of France')
    """
    thought = thought_tags(thought_end)[0]
    for tag, _, content in _blocks(step, (*tools, answer), thought_end):
        if tag != thought and content.strip():
            return tag[1:-1], content.strip()
    return None


def in_thought(step: str, names: Iterable[str], thought_end: str = "</think>") -> bool:
    """Whether a step ends inside a thought; `names` are the tags whose blocks may hold any text.

    >>> in_thought("<think>perhaps <search>a</search>", ["search"]), in_thought("<search>a <think> tag", ["search"])
    (True, True)
    >>> in_thought("<search>a <think> tag</search>", ["search"])
    False
    """
    return any(content is None for _, _, content in _blocks(step, names, thought_end))


def without_thoughts(text: str, names: Iterable[str], thought_end: str = "</think>") -> str:
    """The text without its thoughts; an open one lasts to the end. `names`: tags whose blocks may hold any text.

    >>> without_thoughts("<think>a</think>b<think>c", [])
    'b'
    """
    thought, kept, place = thought_tags(thought_end)[0], [], 0
    for tag, start, content in _blocks(text, names, thought_end):
        if tag == thought:
            kept.append(text[place:start])
            place = len(text) if content is None else start + len(tag) + len(content) + len(thought_end)
    return "".join(kept) + text[place:]


def tag_answer(completion: str, answer: str = "answer", thought_end: str = "</think>") -> str | None:
    """The content of the last closed answer block outside thoughts, stripped; None if there is none or it is empty.

    >>> tag_answer("<answer> Paris </answer>\\n")
    'Paris'
    """
    last_turn = completion.rpartition(UNREADABLE)[2]  # a thought left open ends with its turn
    found = [content for tag, _, content in _blocks(last_turn, (answer,), thought_end) if tag == f"<{answer}>"]
    content = found[-1].strip() if found else ""
    return content if 0 < len(content) <= MAX_CHARS else None


def _blocks(text: str, names: Iterable[str], thought_end: str) -> Iterator[tuple[str, int, str | None]]:
    """(opening tag, its position, content) of each closed block of these tags and of thoughts, without nested ones.

    A thought that never closes comes last, with content None; any other tag that never closes is plain text.
    """
    thought_start, thought_end = thought_tags(thought_end)
    ends = {f"<{name}>": f"</{name}>" for name in names} | {thought_start: thought_end}
    opening = re.compile("|".join(map(re.escape, ends)))
    place, unclosed = 0, set()
    while tag := opening.search(text, place):
        start, place = tag[0], tag.end()
        end = -1 if start in unclosed else text.find(ends[start], place)
        if end >= 0:
            yield start, tag.start(), text[place:end]
            place = end + len(ends[start])
        elif start == thought_start:
            yield start, tag.start(), None
            return
        else:
            unclosed.add(start)


def form_reward(completion: str, tools: Iterable[str], thought_end: str) -> float:
    """1.0 if the completion has the form of `tag_form`, else 0.0."""
    return float(tag_form(completion, tools, thought_end))


def cost_metrics(rows: Iterable[dict]) -> dict[str, float]:
    """Mean turns and tool_calls over the predictions that have the column; left out if none has."""
    rows = list(rows)
    columns = {name: [row[name] for row in rows if row.get(name) is not None] for name in ("turns", "tool_calls")}
    return {name: fmean(values) for name, values in columns.items() if values}


def tag_form(
    completion: str,
    tools: Iterable[str],
    thought_end: str = "</think>",
    information: str = "information",
    answer: str = "answer",
) -> bool:
    """Whether a completion's tags match thought (tool information thought)* answer, with only white space between.

    The rule of Tree-GRPO (arXiv 2509.21240), Appendix; it uses only the completion, not the chat template. Blocks may
    hold any text but these tags, and must not be empty.

    >>> tag_form("<think>a</think><search>b</search>\\n<information>c</information><think>d</think><answer>e</answer>",
    ...          ["search"])
    True
    """
    tools = tuple(tools)
    thought, thought_end = thought_tags(thought_end)
    ends = {f"<{name}>": f"</{name}>" for name in (*tools, information, answer)} | {thought: thought_end}
    called = [f"<{name}>" for name in tools]
    after = {None: (thought,), thought: (*called, f"<{answer}>"), f"<{information}>": (thought,), f"<{answer}>": ()}
    after |= dict.fromkeys(called, (f"<{information}>",))
    texts = sorted([*ends, *ends.values()], key=len, reverse=True)
    last = inside = None
    place = 0
    for tag in re.finditer("|".join(map(re.escape, texts)), completion):
        filled = completion[place : tag.start()].strip() != ""
        place = tag.end()
        if inside is not None:
            if tag[0] != ends[inside] or not filled:
                return False
            last, inside = inside, None
        else:
            if filled or tag[0] not in after[last]:
                return False
            inside = tag[0]
    return last == f"<{answer}>" and inside is None and not completion[place:].strip()


def without_tags(text: str, names: Iterable[str], thought_end: str = "</think>") -> str:
    """Replaces the angle brackets of these tags by round ones: a tool's text can then neither answer nor close a block.

    A thought's tags are treated alike; other texts that open or close a thought are removed.

    >>> without_tags("2 < 3 </information><answer>x</ANSWER >", ["information", "answer"])
    '2 < 3 (/information)(answer)x(/ANSWER )'
    >>> without_tags("a [/PLAN] b", ["answer"], "[/PLAN]")
    'a  b'
    """
    thought = [_NAMED.fullmatch(tag) or tag for tag in thought_tags(thought_end)]
    for tag in thought:
        while isinstance(tag, str) and tag in text:
            text = text.replace(tag, "")
    names = {*names, *(tag[1] for tag in thought if not isinstance(tag, str))}
    names = "|".join(map(re.escape, sorted(names)))
    # Bounded white space, so that the cost stays linear.
    return re.sub(rf"<(\s{{0,4}}/?\s{{0,4}}(?:{names})\s{{0,4}})>", r"(\1)", text, flags=re.IGNORECASE)


def normal_answer(text: str) -> str:
    """SQuAD's normalisation: lower case, no ASCII punctuation, no articles, single spaces.

    A step that would leave nothing is skipped, so that "The The" and "!!!" stay answers.

    >>> normal_answer("The  Eiffel-Tower."), normal_answer("The A!")
    ('eiffeltower', 'the a')
    """
    text = " ".join(text.lower().split())
    for shorter in (lambda t: t.translate(_PUNCTUATION), lambda t: _ARTICLES.sub(" ", t)):
        text = " ".join(shorter(text).split()) or text
    return text


def exact_match(answer: str | None, golds: Iterable[str]) -> float:
    """1.0 if the answer equals one of the golds after `normal_answer`, else 0.0 (also without an answer)."""
    if answer is None:
        return 0.0
    normal = normal_answer(answer)
    return float(normal != "" and any(normal == normal_answer(gold) for gold in golds))


def f1_score(answer: str | None, golds: Iterable[str]) -> float:
    """The maximum over the golds of the F1 of words after `normal_answer`, repeated words counted.

    >>> round(f1_score("the city of Paris", ["Paris, France"]), 3)
    0.4
    """
    words = Counter(normal_answer(answer).split()) if answer is not None else Counter()
    return max((_f1(words, Counter(normal_answer(gold).split())) for gold in golds), default=0.0)


def _f1(words: Counter, gold: Counter) -> float:
    shared = (words & gold).total()
    return 2 * shared / (words.total() + gold.total()) if shared else 0.0
