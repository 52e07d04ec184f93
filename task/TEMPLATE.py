"""A complete task to copy: `cp task/TEMPLATE.py task/my_task.py`, change "my-task" below, and it trains.

Records with "question_type": "my-task" are then prompted, scored and evaluated by the new file. As it stands it asks
for a short text and compares it with the record's answer.
"""

from task.parsing.answers import answer_text, normal_text, split_completion

TASK_CONFIG = {
    "task_type": "my-task",  # equals the records' question_type
    # {Question} is replaced by the record's question. Pictures come before this text.
    "grpo_template": (
        "{Question} First think inside <think> </think>, then give a short answer inside <answer> </answer>."
    ),
    "description": "a short text, compared after white space and case",  # optional, as the next three
    "input_format": "a question, with or without pictures",
    "output_format": "a few words",
    # The coordinate frame of the answer: "none" (no coordinates), "original", "norm1000" (0 to 1000), or "processed":
    # the scale of the run's model, which {Coordinates} in the template names. The last two need
    # process_answer(answer, size_from, size_to): trajectory_sharerobot.py.
    "frame": "none",
    # "system_prompt": "...",  # optional
}

# Optional: scored before training starts, so that a broken reward shows at once. The wrong completion must be well
# formed and score 0. "image_size": (w, h) and "processed_size": (w, h) beside "answer" describe a picture.
SELF_TEST = {
    "record": {"answer": "garden phlox"},
    "right": "<think>five petals</think><answer>Garden phlox</answer>",
    "wrong": "<think>five petals</think><answer>rose or garden phlox</answer>",
}

# Optional: which values of the metrics below are better, "lower" or "higher"; "*" stands for any text. A metric that
# is not named here gets no verdict in comparisons, and as metric_for_best_model needs greater_is_better.
METRICS = {"parse_failure_rate": "lower"}

# Rewards get the completion only, never the prompt, and must not raise on anything a model writes. kw always holds id,
# question_type, image_size and processed_size ((width, height) or None), record (the whole record), thought_end. In the
# frame "processed", processed_size is the plane of the model's coordinates. An accuracy_reward that waits, for a server
# for example, may be `async def` (open_question.py).


def format_reward(completion, sol, **kw):
    """1.0 for a well-formed completion, else 0.0."""
    parts = split_completion(completion, kw.get("thought_end", "</think>"))
    return float(parts is not None and parts[1].strip() != "")


def accuracy_reward(completion, sol, **kw):
    """A float; or (float, {"name": number}) to log more; or None where the reward does not apply."""
    if sol is None:
        return None
    answer = parse_answer(completion, **kw)
    if answer is None:
        return 0.0, {"parse_fail": 1}
    # Equality, not containment: an answer that lists every option must not score.
    return float(normal_text(answer) == normal_text(str(sol))), {"parse_fail": 0}


def parse_answer(completion, **kw):
    """Optional: the answer as evaluation stores it, or None when there is none."""
    return answer_text(completion, kw.get("thought_end", "</think>"))


def compute_metrics(predictions, **kw):
    """Optional: metrics over all predictions of this task (dicts, described in metadata/README.md), as floats.

    The evaluation itself adds the means of accuracy and format, and the counts. kw holds thought_end.
    """
    rows = [row for row in predictions if row["status"] != "load_error"]
    return {"parse_failure_rate": sum(row["prediction"] is None for row in rows) / max(len(rows), 1)}


# Optional: make_environment(), for a task in which an agent acts before it answers: docs/agents.md.
