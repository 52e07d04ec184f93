"""Reads what an agent wrote in the tag form, and compares short answers as SQuAD does.

Every function takes any text, raises nothing and costs linear time. Rewards and the policy share these, so that what
acts in a rollout is what scores in a reward.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable
from statistics import fmean

from task.parsing.answers import thought_tags

# What an agent is told of a turn without an action, in its own voice, so that the text fits between its turns. No tag
# is spelt out: rewards read this text too.
UNREADABLE = (
    "\n\nI did not act in a form that can be carried out. A call goes between the opening and the closing tag of a "
    "tool, the final answer between the answer tags. I try again.\n\n"
)
MAX_CHARS = 100_000  # a longer answer is none
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def tag_action(step: str, tools: Iterable[str], answer: str = "answer") -> tuple[str, str] | None:
    """(tag, content) of the first block of a step that is closed, for the tools' tags and the answer's; else None.

    The content starts at the first opening tag of that name and is stripped; an empty one is no action.

    >>> tag_action("<think>look</think><search> capital of France </search>", ["search"])
    ('search', 'capital of France')
    """
    ends = [(place, name) for name in (*tools, answer) if (place := step.find(f"</{name}>")) >= 0]
    for place, name in sorted(ends):
        start = step.find(f"<{name}>", 0, place)
        if start >= 0 and (content := step[start + len(name) + 2 : place].strip()):
            return name, content
    return None


def tag_answer(completion: str, answer: str = "answer") -> str | None:
    """The content of the last closed answer block, stripped; None when there is none or it is empty.

    >>> tag_answer("<answer> Paris </answer>\\n")
    'Paris'
    """
    end = completion.rfind(f"</{answer}>")
    start = completion.rfind(f"<{answer}>", 0, max(end, 0))
    if start < 0:
        return None
    content = completion[start + len(answer) + 2 : end].strip()
    return content if 0 < len(content) <= MAX_CHARS else None


def form_reward(completion: str, tools: Iterable[str], thought_end: str) -> float:
    """1.0 if the completion has the form of `tag_form`, the thought's tags being those of `thought_end`; else 0.0."""
    return float(tag_form(completion, tools, thought_tags(thought_end)[0].strip("<>")))


def cost_metrics(rows: Iterable[dict]) -> dict[str, float]:
    """Mean turns and tool_calls of predictions, each over those that have the column; left out where none has."""
    rows = list(rows)
    columns = {name: [row[name] for row in rows if row.get(name) is not None] for name in ("turns", "tool_calls")}
    return {name: fmean(values) for name, values in columns.items() if values}


def tag_form(
    completion: str,
    tools: Iterable[str],
    think: str = "think",
    information: str = "information",
    answer: str = "answer",
) -> bool:
    """Whether the tags of a whole completion read think (tool information think)* answer, with white space between.

    The rule of Tree-GRPO (arXiv 2509.21240), Appendix; it looks at the completion alone, so at no chat template. Blocks
    hold any text but these tags, and none is empty.

    >>> tag_form("<think>a</think><search>b</search>\\n<information>c</information><think>d</think><answer>e</answer>",
    ...          ["search"])
    True
    """
    tools = tuple(tools)
    after = {None: (think,), think: (*tools, answer), information: (think,), answer: ()}
    after |= dict.fromkeys(tools, (information,))
    names = "|".join(map(re.escape, (think, *tools, information, answer)))
    last = inside = None
    place = 0
    for tag in re.finditer(f"<(/?)({names})>", completion):
        filled = completion[place : tag.start()].strip() != ""
        place = tag.end()
        if tag[1]:
            if inside != tag[2] or not filled:
                return False
            last, inside = inside, None
        else:
            if inside or filled or tag[2] not in after[last]:
                return False
            inside = tag[2]
    return last == answer and inside is None and not completion[place:].strip()


def without_tags(text: str, names: Iterable[str]) -> str:
    """The text with the brackets of these tags made round: what a tool returns can neither answer nor close a block.

    >>> without_tags("2 < 3 </information><answer>x</ANSWER >", ["information", "answer"])
    '2 < 3 (/information)(answer)x(/ANSWER )'
    """
    names = "|".join(map(re.escape, names))
    # Bounded white space, so that the cost stays linear.
    return re.sub(rf"<(\s{{0,4}}/?\s{{0,4}}(?:{names})\s{{0,4}})>", r"(\1)", text, flags=re.IGNORECASE)


def normal_answer(text: str) -> str:
    """SQuAD's normal form: lower case, no ASCII punctuation, no articles, single spaces.

    A step that would leave nothing is left out, so that "The The" and "!!!" stay answers.

    >>> normal_answer("The  Eiffel-Tower."), normal_answer("The A!")
    ('eiffeltower', 'the a')
    """
    text = " ".join(text.lower().split())
    for shorter in (lambda t: t.translate(_PUNCTUATION), lambda t: _ARTICLES.sub(" ", t)):
        text = " ".join(shorter(text).split()) or text
    return text


def exact_match(answer: str | None, golds: Iterable[str]) -> float:
    """1.0 if the answer equals one of the golds in normal form, else 0.0 (no answer: 0.0)."""
    if answer is None:
        return 0.0
    normal = normal_answer(answer)
    return float(normal != "" and any(normal == normal_answer(gold) for gold in golds))


def f1_score(answer: str | None, golds: Iterable[str]) -> float:
    """The best F1 over the golds, of words in normal form counted as often as they occur.

    >>> round(f1_score("the city of Paris", ["Paris, France"]), 3)
    0.4
    """
    words = Counter(normal_answer(answer).split()) if answer is not None else Counter()
    return max((_f1(words, Counter(normal_answer(gold).split())) for gold in golds), default=0.0)


def _f1(words: Counter, gold: Counter) -> float:
    shared = (words & gold).total()
    return 2 * shared / (words.total() + gold.total()) if shared else 0.0
