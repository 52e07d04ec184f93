"""Finds the task files, checks each against the contract, and hands out `Task` objects by question_type.

A file that breaks the contract stops the run with an error that names it, so that no reward is silently ignored because
of a misspelt name. Importing this module imports neither torch nor numpy.
"""

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from task.errors import UserError, place_of
from task.own_tasks import VARIABLE, own_folders
from task.parsing.answers import thought_tags
from task.rewards.directions import DIRECTIONS, direction

NOT_TASKS = {"TEMPLATE", "own_tasks", "task_loader", "processing_utils", "answer_parsing"}
FRAMES = ("original", "processed", "norm1000", "none")
MAPPED_FRAMES = ("processed", "norm1000")  # frames in which an answer differs from the record's own numbers
MODEL_FRAMES = MAPPED_FRAMES  # what `processed` may be: the frame in which the run's model writes coordinates
REQUIRED_KEYS = ("task_type", "grpo_template")
OPTIONAL_KEYS = ("frame", "system_prompt", "description", "input_format", "output_format")
MISSPELT = 0.8  # similarity from which an unknown key counts as a misspelt one
REWARD_KEYWORDS = ("id", "question_type", "image_size", "processed_size", "record", "thought_end")

# name -> (positional arguments, whether keywords are passed too, whether it is required)
FUNCTIONS = {
    "format_reward": (("completion", "sol"), True, True),
    "accuracy_reward": (("completion", "sol"), True, True),
    "process_answer": (("answer", "size_from", "size_to"), False, False),
    "parse_answer": (("completion",), True, False),
    "compute_metrics": (("predictions",), True, False),
    "make_environment": ((), False, False),
}
SELF_TEST_KEYS = ("record", "right", "wrong")


@dataclass(frozen=True)
class Task:
    """One loaded task file. `name` is TASK_CONFIG["task_type"], the value of a record's question_type.

    config: TASK_CONFIG, with defaults for frame and description.
    format_reward(completion, sol, **kw) -> 0.0 or 1.0
    accuracy_reward(completion, sol, **kw) -> float, (float, dict of logged numbers), or None (not applicable)
    process_answer(answer, size_from, size_to) -> the answer with its coordinates moved between two (width, height)
    parse_answer(completion, **kw) -> the answer in the task's frame, or None if there is none
    compute_metrics(predictions, **kw) -> dict of floats
    make_environment() -> an environment for agent tasks
    metrics: METRICS, the direction of the metrics of compute_metrics: name -> "lower" or "higher"; {} if not declared
    self_test: SELF_TEST, {"record": {"answer": ..., ...}, "right": completion, "wrong": completion}, or None
    thought_end: the tag that closes a thought in the run that the task was loaded for; prompts ask for it, and the
        functions receive it as a keyword
    coordinate_frame: what the frame "processed" is in this run, one of `MODEL_FRAMES`: pixels of the processed picture,
        or 0 to 1000 on both axes; None: not known

    Keywords: id, question_type, image_size, processed_size ((width, height) or None), record, thought_end; those of
    compute_metrics: thought_end. For a task whose frame is "processed", processed_size is the plane of the model's
    coordinates, so (1000, 1000) with norm1000.
    """

    name: str
    path: Path
    config: dict
    format_reward: Callable
    accuracy_reward: Callable
    process_answer: Callable | None = None
    parse_answer: Callable | None = None
    compute_metrics: Callable | None = None
    make_environment: Callable | None = None
    metrics: dict[str, str] = field(default_factory=dict)
    self_test: dict | None = None
    thought_end: str = "</think>"
    coordinate_frame: str | None = "processed"

    @property
    def is_own(self) -> bool:
        """Whether the file is the user's, outside the package."""
        return self.path.resolve().parent != Path(__file__).resolve().parent


def load_tasks(
    folder: str | Path | None = None, thought_end: str = "</think>", coordinate_frame: str | None = "processed"
) -> dict[str, Task]:
    """Every task of a folder, keyed by task_type, in the order of their file names.

    Files whose names start with an underscore are helpers of the others.

    Args:
        folder: default: this one and then the user's own (`own_folders`).
        thought_end: the tag that closes a thought in this run; every task is bound to it.
        coordinate_frame: the frame in which this run's model writes coordinates, or None if that is not known; a task
            that needs it raises where its first record is read.

    Raises UserError for a `thought_end` that is not a closing tag, and for a file that cannot be imported or breaks the
    contract, with its name.
    """
    thought_tags(thought_end)
    package = Path(__file__).parent
    folders = [package, *own_folders()] if folder is None else [Path(folder)]
    tasks: dict[str, Task] = {}
    for path in [path for where in folders for path in _task_files(where)]:
        of_package = folder is None and path.parent == package
        bound = {"thought_end": thought_end, "coordinate_frame": coordinate_frame}
        task = replace(_checked(path, _import(path, of_package)), **bound)
        if task.name in tasks:
            raise UserError(
                f"{path}: task_type {task.name!r} is already taken by {tasks[task.name].path}: give each file its own."
            )
        tasks[task.name] = task
    return tasks


def _task_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder that holds the task files.")
    files = [p for p in sorted(folder.glob("*.py")) if p.stem not in NOT_TASKS and not p.name.startswith(("_", "."))]
    if not files:
        raise UserError(f"{folder} holds no task file: copy TEMPLATE.py there under a new name.")
    return files


def register(*args, **kwargs) -> Callable:
    """Does nothing: every file in the folder is a task. Published task files may call it or use it as a decorator."""
    return args[0] if len(args) == 1 and callable(args[0]) else lambda decorated: decorated


def get_task(question_type: str, tasks: dict[str, Task] | None = None) -> Task:
    """The task of a record's question_type; `tasks` defaults to the files of this folder, read once per process.

    Raises UserError listing the known types, with the nearest one.
    """
    tasks = _known_tasks(os.environ.get(VARIABLE)) if tasks is None else tasks
    if isinstance(question_type, str) and question_type in tasks:
        return tasks[question_type]
    near = difflib.get_close_matches(str(question_type), tasks, n=1)
    raise UserError(
        f"no task has question_type {question_type!r}{_did_you_mean(near)}; known: {', '.join(sorted(tasks))}. "
        "A question_type equals TASK_CONFIG['task_type'] of a file in task/ or in --task_dir."
    )


def print_summary(tasks: dict[str, Task] | None = None) -> None:
    """Prints type, file, frame, optional functions and description of each task."""
    tasks = load_tasks() if tasks is None else tasks
    optional = [name for name, (_, _, required) in FUNCTIONS.items() if not required]
    print(f"{len(tasks)} task(s):")
    for task in tasks.values():
        extras = ", ".join(name for name in optional if getattr(task, name)) or "rewards only"
        print(f"  {task.name}  ({task.path.name}; frame {task.config['frame']}; {extras})")
        print(f"      {task.config['description']}")


@functools.cache
def _known_tasks(own_folders: str | None) -> dict[str, Task]:
    return load_tasks()


def _import(path: Path, of_package: bool) -> ModuleType:
    try:
        if of_package:
            return importlib.import_module(f"{__package__}.{path.stem}")
        spec = importlib.util.spec_from_file_location(f"task_file_{path.stem}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
        spec.loader.exec_module(module)
        return module
    except Exception as error:
        raise UserError(
            f"{place_of(error, path)}: the task file cannot be imported ({type(error).__name__}: {error}): repair it "
            "or move it away."
        ) from error


def _checked(path: Path, module: ModuleType) -> Task:
    config = getattr(module, "TASK_CONFIG", None)
    if config is None:
        near = difflib.get_close_matches("TASK_CONFIG", vars(module), n=1)
        raise UserError(
            f"{path}: has no TASK_CONFIG{_did_you_mean(near)}: every file in task/ is a task and defines it, "
            "see TEMPLATE.py."
        )
    functions = {name: _function(path, module, name) for name in FUNCTIONS}
    if isinstance(config, dict):
        frame = "none" if functions["process_answer"] is None else "processed"
        config = {"frame": frame, "description": "no description"} | config
    _check_config(path, config)
    if config["frame"] in MAPPED_FRAMES and functions["process_answer"] is None:
        raise UserError(
            f"{path}: frame {config['frame']!r} needs process_answer(answer, size_from, size_to), which moves the "
            "record's answer into that frame: define it, or set frame to 'original' or 'none'."
        )
    declared = {"metrics": _metrics(path, module), "self_test": _self_test(path, module)}
    return Task(config["task_type"], path, config, **functions, **declared)


def _check_config(path: Path, config) -> None:
    if not isinstance(config, dict):
        raise UserError(f"{path}: TASK_CONFIG is a {type(config).__name__}: make it a dict, see TEMPLATE.py.")
    for key in REQUIRED_KEYS:
        if key not in config:
            near = difflib.get_close_matches(key, config, n=1)
            raise UserError(f"{path}: TASK_CONFIG has no {key!r}{_did_you_mean(near)}: add it, see TEMPLATE.py.")
    known = REQUIRED_KEYS + OPTIONAL_KEYS
    for key, value in config.items():
        near = difflib.get_close_matches(str(key).lower(), known, n=1, cutoff=MISSPELT)
        if key not in known and near:
            raise UserError(
                f"{path}: TASK_CONFIG has the unknown key {key!r}{_did_you_mean(near)}: correct it, or name a setting "
                "of your own less like it."
            )
        if key in known and (not isinstance(value, str) or not value.strip()):
            raise UserError(f"{path}: TASK_CONFIG[{key!r}] is {value!r}: give a text that is not empty.")
    for key in ("grpo_template", "system_prompt"):
        slot = next((slot for slot in ("<image>", "<video>") if slot in config.get(key, "")), None)
        if slot:
            raise UserError(
                f"{path}: {key} holds {slot}, which would reach the model as text: leave it out. Pictures and "
                "videos come first, or where a record's question has the marker."
            )
    if config["grpo_template"].count("{Question}") != 1:
        raise UserError(f"{path}: grpo_template must hold {{Question}} exactly once: that is where the question goes.")
    if config["frame"] not in FRAMES:
        near = difflib.get_close_matches(config["frame"], FRAMES, n=1)
        raise UserError(
            f"{path}: frame is {config['frame']!r}{_did_you_mean(near)}: choose one of {', '.join(FRAMES)}."
        )


def _metrics(path: Path, module: ModuleType) -> dict[str, str]:
    metrics = getattr(module, "METRICS", None)
    if metrics is None:
        near = [name for name in vars(module) if name.isupper()]
        near = difflib.get_close_matches("METRICS", near, n=1, cutoff=0.85)
        if near:
            raise UserError(f"{path}: has no METRICS{_did_you_mean(near)}: rename it, or begin it with an underscore.")
        return {}
    if not isinstance(metrics, dict):
        raise UserError(f'{path}: METRICS is a {type(metrics).__name__}: make it a dict such as {{"dfd_px": "lower"}}.')
    for name, way in metrics.items():
        if not isinstance(name, str) or way not in DIRECTIONS:
            raise UserError(f"{path}: METRICS has {name!r}: {way!r}: map a metric's name to {' or '.join(DIRECTIONS)}.")
        if direction(name, {}) not in (None, way):
            raise UserError(
                f"{path}: METRICS has {name!r}: {way!r}, but evaluation adds this metric to every task, better when "
                f"{direction(name, {})}: leave it out, or rename your own."
            )
    return metrics


def _self_test(path: Path, module: ModuleType) -> dict | None:
    test = getattr(module, "SELF_TEST", None)
    if test is None:
        return None
    rule = "make it a dict of a record (dict with an answer) and two completions (texts), right and wrong."
    if not isinstance(test, dict) or sorted(test) != sorted(SELF_TEST_KEYS):
        got = sorted(map(str, test)) if isinstance(test, dict) else type(test).__name__
        raise UserError(f"{path}: SELF_TEST has {got} where {', '.join(SELF_TEST_KEYS)} are needed: {rule}")
    record, completions = test["record"], (test["right"], test["wrong"])
    if not isinstance(record, dict) or "answer" not in record or not all(isinstance(c, str) for c in completions):
        raise UserError(f"{path}: SELF_TEST does not have the right contents: {rule}")
    return test


def _function(path: Path, module: ModuleType, name: str) -> Callable | None:
    arguments, keywords, required = FUNCTIONS[name]
    function = getattr(module, name, None)
    call = f"{name}({', '.join(arguments + ('**kw',) * keywords)})"
    if function is None:
        misspelt = _misspelling(module, name)
        if required or misspelt:
            raise UserError(
                f"{path}: has no {call}{_did_you_mean(misspelt)}: "
                + ("define it, see TEMPLATE.py." if required else "rename it, or start its name with an underscore.")
            )
        return None
    if not callable(function):
        raise UserError(f"{path}: {name} is a {type(function).__name__}: make it a function {call}.")
    signature = inspect.signature(function)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    try:
        signature.bind(*arguments, **dict.fromkeys(REWARD_KEYWORDS if keywords else ()))
        fits = open_ended or not keywords
    except TypeError:
        fits = False
    if not fits:
        raise UserError(f"{path}: {name}{signature} does not fit the call {call}: change its arguments to these.")
    return function


def _misspelling(module: ModuleType, name: str) -> list[str]:
    """A public function of the module whose name looks like `name` misspelt, as a list of at most one."""
    own = [
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not key.startswith("_")
        and key not in FUNCTIONS
    ]
    return difflib.get_close_matches(name, own, n=1, cutoff=0.85)


def _did_you_mean(names: list[str]) -> str:
    return f" (did you mean {names[0]!r}?)" if names else ""
