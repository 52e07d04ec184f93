"""A record that the rewards of its task cannot score is named before training."""

import pytest
from paths import ROOT

from task.rewards.record_check import check_record
from task.task_loader import load_tasks

TYPE = "trajectory-sharerobot"
ANSWER = [[12.0, 25.0], [60.5, 71.0], [100.0, 110.0]]


@pytest.mark.parametrize(
    ("answer", "size"),
    [("[[1, 2], [3, 4", (56, 56)), ([[1, 2]], (56, 56)), ([[1, 2, 3], [4, 5, 6]], (56, 56)), (ANSWER, None)],
    ids=["cut-off JSON text", "one point", "three axes", "no picture"],
)
def test_a_record_its_task_cannot_score(answer, size):
    record = {"id": "r", "question_type": TYPE, "question": "Move.", "answer": answer}
    with pytest.raises(ValueError, match=r"record 'r': the rewards of .*trajectory_sharerobot\.py cannot score it"):
        check_record(load_tasks()[TYPE], record, size, size)


def record(number, **changes):
    image = ROOT / "metadata" / "demo" / "trajectory" / "images" / f"demo-train-{number:05d}.png"
    fields = {"question": "Move.", "question_type": TYPE, "answer": ANSWER, "image": str(image), "id": f"r{number}"}
    return {key: value for key, value in (fields | changes).items() if value is not None}
