"""Programs with unit tests: MBPP (CC BY 4.0) and HumanEval (MIT)."""

from converters.converted import Converted, need, others, text
from task.errors import UserError


def mbpp(raw, options):
    """The question contains the tests, as is usual for MBPP: only they name the function."""
    tests = need(raw, "test_list")
    if not isinstance(tests, list) or not tests:
        raise UserError("test_list has no test")
    setup = raw.get("test_setup_code") or "\n".join(raw.get("test_imports") or [])
    question = f"{text(raw, 'text', 'prompt').strip()}\nThe program must pass these tests:\n" + "\n".join(tests)
    record = {"id": f"mbpp-{need(raw, 'task_id')}", "question": question, "question_type": "code-generation"}
    record |= {"answer": {"tests": tests} | ({"setup": setup} if setup else {})}
    known = ("task_id", "text", "prompt", "test_list", "test_setup_code", "test_imports")
    return [Converted(record, rest=others(raw, *known))]


def humaneval(raw, options):
    """The question shows the function to complete; the answer must be the whole program, the given part included."""
    name = text(raw, "entry_point")
    question = f"Complete this Python function:\n{text(raw, 'prompt').rstrip()}"
    record = {"id": text(raw, "task_id"), "question": question, "question_type": "code-generation"}
    record |= {"answer": {"tests": [f"{text(raw, 'test').rstrip()}\n\ncheck({name})\n"]}}
    return [Converted(record, rest=others(raw, "task_id", "prompt", "entry_point", "test"))]
