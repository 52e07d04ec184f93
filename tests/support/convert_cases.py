"""Source records of the formats that scripts/data/convert.py reads."""

META = {"original_dataset": "bridge", "original_width": 640, "original_height": 480}
POINTS = [[265.45, 120.0], [275.15, 162.42], [280.0, 213.33], [280.0, 259.39]]
MBPP = {"task_id": 2, "text": "Square a number.", "code": "def sq(x):\n    return x * x", "test_setup_code": ""}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def sq(x):\n    """Square."""\n',
    "entry_point": "sq",
    "canonical_solution": "    return x * x\n",
    "test": "def check(candidate):\n    assert candidate(3) == 9\n",
}


def robot(**changes):
    return {"id": 456, "meta_data": META, "instruction": "reach for the carrot", "points": POINTS} | changes


def turns(*values, **record):
    said_by = ("human", "gpt")
    return {"conversations": [{"from": said_by[n % 2], "value": value} for n, value in enumerate(values)]} | record
