"""Builds the policy of agent tasks for a batch of records: environments, action form and settings."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from task.agents.environment import ACTION_FORMS, tools_of
from task.errors import UserError
from task.parsing.answers import thought_tags
from task.task_loader import Task
from trainer.policies.agent.arguments import argument_of
from trainer.policies.agent.calls import ToolFailure
from trainer.policies.agent.forms import TagForm, ToolCallForm
from trainer.policies.agent.observation import Framer
from trainer.policies.agent.step import AgentStepPolicy, Limits, TreeShape

_checked: dict[tuple, Any] = {}  # (task, settings) -> an environment that was started in this process


def shape_of(args) -> TreeShape:
    """The shape of a training rollout, from the fields of config/methods/tree_grpo.py."""
    return TreeShape(
        args.tree_num,
        args.expand_num,
        args.expand_rounds,
        root=args.expand_root,
        with_replacement=args.fork_choice == "code",
        per_node=args.branches_per_node,
        temperature=args.branch_temperature,
        top_k=args.branch_top_k,
    )


def agent_policy(
    args,
    records: Sequence[dict],
    tasks: dict[str, Task],
    tokenizer,
    module,
    settings: dict[str, Any],
    *,
    shape: TreeShape,
    length: int,
) -> AgentStepPolicy:
    """The policy that grows these records.

    Args:
        args: has max_turns, max_turn_length, max_observation_length and tool_timeout.
        records: parsed; the environments of their tasks must share one action form.
        settings: arguments of every `reset` in addition to the record (environment_args).
        shape: numbers of trees and branches; `TreeShape(1)` is a single chain, for evaluation.
        length: limit of a completion in tokens, observations included.

    Raises UserError, one sentence, for a task without environment, environments that cannot be combined, or settings
    that an environment's first reset rejects.
    """
    used = {record["question_type"]: tasks[record["question_type"]] for record in reversed(records)}
    first = {record["question_type"]: record for record in reversed(records)}
    plain = next((name for name, task in used.items() if task.make_environment is None), None)
    if plain is not None:
        raise UserError(
            f"question_type {plain!r} has no make_environment() in {used[plain].path}, so an agent cannot act in it: "
            "train it with method grpo or grpo_ma, or leave its records out"
        )
    samples = {name: _checked_environment(task, first[name], settings) for name, task in used.items()}
    thought_end = next(iter(used.values())).thought_end
    form = _form(samples, tokenizer, module, thought_end)
    environment_makers = {
        record["id"]: partial(_started, used[record["question_type"]], record, settings) for record in records
    }
    limits = Limits(args.max_turns, args.max_turn_length, args.max_observation_length, length, args.tool_timeout)
    framer, opened = Framer(module, form), module.opened_thought
    return AgentStepPolicy(shape, limits, form, framer, environment_makers, tokenizer, opened)


def policies_of_evaluation(
    args, settings: dict[str, Any], tasks: dict[str, Task], tokenizer, module, length: int
) -> Callable:
    """The `policy_of` argument of trainer/evaluation/predict.py: one chain per record, in the task's environment.

    For the arguments see `agent_policy`.
    """

    def policy_of(task: Task, records: list[dict]) -> AgentStepPolicy:
        return agent_policy(args, records, tasks, tokenizer, module, settings, shape=TreeShape(1), length=length)

    return policy_of


def check_agents(args, settings: dict[str, Any], records: dict, held_out: dict, tasks: dict[str, Task], module) -> None:
    """Builds the policies for one record per task, for training and evaluation, so that a run fails at its start.

    Args:
        settings: arguments of every `reset` in addition to the record (environment_args).
        records, held_out: question_type -> a record.

    Raises UserError as `agent_policy` does.
    """
    tokenizer, length = module.tokenizer, args.max_completion_length
    agent_policy(args, [*records.values()], tasks, tokenizer, module, settings, shape=shape_of(args), length=length)
    policy_of = policies_of_evaluation(args, settings, tasks, tokenizer, module, length)
    for name, record in held_out.items():
        if tasks[name].make_environment is not None:
            policy_of(tasks[name], [record])


def reset_arguments(record: dict, settings: dict) -> dict:
    """The arguments of an environment's reset: the record's fields, with those of `extra`, and the run's settings."""
    own = {key: value for key, value in record.items() if key not in ("extra", "messages")}
    return record.get("extra", {}) | own | settings


def _started(task: Task, record: dict, settings: dict) -> Any:
    """An environment whose episode has been started; ToolFailure "reset" if that fails."""
    try:
        environment = task.make_environment()
        environment.reset(**reset_arguments(record, settings))
    except BaseException as error:
        raise ToolFailure("reset", f"{type(error).__name__}: {error}") from error
    return environment


def _checked_environment(task: Task, record: dict, settings: dict) -> Any:
    """An environment of the task, started and checked once per process, so that wrong settings end the run."""
    key = (task.path, task.make_environment, repr(sorted(settings.items())))
    if key not in _checked:
        _checked[key] = _started_and_checked(task, record, settings)
    return _checked[key]


def _started_and_checked(task: Task, record: dict, settings: dict) -> Any:
    try:
        environment = task.make_environment()
        _warn_of_unknown_settings(task, environment, settings)
        returned = environment.reset(**reset_arguments(record, settings))
    except UserError:
        raise
    except ValueError as error:  # a sentence of the task's own
        raise UserError(str(error)) from error
    except Exception as error:
        raise UserError(
            f"{task.path}: make_environment() or reset() fails on record {record['id']!r} with environment_args "
            f"{settings} ({type(error).__name__}: {error}): correct them, or the task file"
        ) from error
    if returned is not None:
        raise UserError(
            f"{task.path}: reset() returned {str(returned)[:60]!r}, which would have to be part of the prompt: put it "
            "into the record's question, and return None"
        )
    _check_fork(task, environment)
    if not tools_of(environment):
        raise UserError(f"{task.path}: {type(environment).__name__} has no public method, so an agent has no tool")
    return environment


def _check_fork(task: Task, environment: Any) -> None:
    """UserError for a `_fork` that cannot work: every branch would fail, and nothing would be learnt."""
    if not hasattr(environment, "_fork"):
        return
    try:
        copied = environment._fork()
    except Exception as error:
        raise UserError(
            f"{task.path}: _fork() fails ({type(error).__name__}: {error}): correct it, or leave it out and let "
            "branches replay"
        ) from error
    if copied is None:
        raise UserError(
            f"{task.path}: _fork() returned None: return a copy of the environment, or itself where no tool changes "
            "anything"
        )


def _warn_of_unknown_settings(task: Task, environment: Any, settings: dict) -> None:
    """Warns of settings that reset() does not name: it accepts any keyword, so a typo would go unnoticed."""
    parameters = inspect.signature(environment.reset).parameters.values()
    named = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    for name in settings:
        if named and name not in named:
            warnings.warn(
                f"environment_args: {name!r} is not an argument of reset() in {task.path} ({', '.join(named)})",
                stacklevel=2,
            )


def _form(samples: dict[str, Any], tokenizer, module, thought_end: str):
    """The action form that all environments share."""
    forms = {name: getattr(environment, "action_form", "tags") for name, environment in samples.items()}
    unknown = next((name for name, form in forms.items() if form not in ACTION_FORMS), None)
    if unknown is not None:
        choices = ", ".join(ACTION_FORMS)
        wrong = f"question_type {unknown!r}: action_form {forms[unknown]!r}"
        raise UserError(f"{wrong} is not one of {choices}: choose one")
    tags = {name: getattr(environment, "tags", {}) for name, environment in samples.items()}
    if len(set(forms.values())) > 1 or any(one != next(iter(tags.values())) for one in tags.values()):
        raise UserError(
            f"the tasks {', '.join(samples)} act in different forms or with different tags, which one generation "
            "cannot mix: train them separately, or give their environments the same action_form and tags"
        )
    if "tool_calls" in forms.values():
        return _tool_call_form(samples, tokenizer, module, thought_end)
    tools = {name for environment in samples.values() for name in tools_of(environment)}
    form = TagForm(sorted(tools), thought_end, next(iter(tags.values())))
    for question_type, environment in samples.items():
        _check_tags(question_type, environment, form)
    return form


def _check_tags(question_type: str, environment: Any, form: TagForm) -> None:
    """UserError for a tool that no tag can call, and for ambiguous tags."""
    where = f"question_type {question_type!r}"
    for name, tool in tools_of(environment).items():
        try:
            argument_of(tool)
        except TypeError as error:
            raise UserError(
                f"{where}: the tool {name} cannot be called by a tag ({error}): give all but one of its arguments "
                "defaults, or the environment action_form 'tool_calls'"
            ) from None
    names = [thought_tags(form.thought_end)[0].strip("<>"), *form.names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            f"{where}: {twice!r} names two of the thought, the tools, the observation and the answer: rename the tool, "
            "or one of the environment's tags"
        )
    odd = {key: name for key, name in getattr(environment, "tags", {}).items() if key not in ("information", "answer")}
    if odd:
        raise UserError(f"{where}: unknown tags {odd}: only 'information' and 'answer' can be renamed")


def _tool_call_form(samples: dict[str, Any], tokenizer, module, thought_end: str) -> ToolCallForm:
    """The chat template's form; UserError if the template does not list the tools."""
    marked = [{"type": "function", "function": {"name": "tool_of_this_test", "parameters": {}}}]
    if "tool_of_this_test" not in module.render([{"role": "user", "content": "x", "tools": marked}]):
        raise UserError(
            f"the tasks {', '.join(samples)} act by tool calls, but the model's chat template lists no tools: use a "
            "model whose template does, or environments with action_form 'tags'"
        )
    return ToolCallForm(module.processor, tokenizer.eos_token, thought_end, module.template_kwargs)
