"""Word problems (GSM8K, MIT) and competition problems (MATH, MIT)."""

from converters.converted import Converted, others, text
from task.errors import UserError
from task.parsing.text import boxed_text

MARK = "####"  # precedes the result in GSM8K


def gsm8k(raw, options):
    solution = text(raw, "answer")
    if solution.count(MARK) != 1 or not solution.partition(MARK)[2].strip():
        raise UserError(f"the answer has no single result after {MARK}")
    result = solution.partition(MARK)[2].strip()
    record = {"question": text(raw, "question"), "question_type": "math-reasoning", "answer": result.replace(",", "")}
    record["solution"] = solution
    changes = ["thousands separators removed"] if "," in result else []
    return [Converted(record, changes, rest=others(raw, "question", "answer"))]


def competition(raw, options):
    """The answer is the content of the one \\boxed{} of the solution, or `answer` if the file has it."""
    solution = text(raw, "solution")
    answer = raw.get("answer")
    if answer is None:
        answer = boxed_text(solution) if "boxed" in solution else None
        if answer is None:
            raise UserError("the solution has no single \\boxed{}")
    record = {"question": text(raw, "problem"), "question_type": "math-reasoning", "answer": str(answer)}
    return [Converted(record | {"solution": solution}, rest=others(raw, "problem", "solution", "answer"))]
