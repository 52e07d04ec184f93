"""What each folder may hold, so that a reader finds a thing where its folder says it is."""

from paths import ROOT

from task.task_loader import NOT_TASKS, load_tasks

TRAINER_MODULES = 12


def modules(folder: str) -> set[str]:
    return {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}


def test_few_modules_lie_flat_in_trainer():
    assert len(modules("trainer")) <= TRAINER_MODULES, sorted(modules("trainer"))


def test_task_holds_tasks_and_the_loader():
    tasks = {task.path.stem for task in load_tasks().values()}
    assert modules("task") == tasks | (NOT_TASKS - {"__init__"})
