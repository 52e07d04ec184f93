"""Agents for tests: an engine that takes its turns from a script, and small environments."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from trainer_cases import text_rows, text_trainer

from config.agents import parse_environment_args
from config.methods.tree_grpo import TreeGRPOFields
from trainer.policies.agent.build import agent_policy, shape_of
from trainer.policies.agent.forms import Action, TagForm, Turn
from trainer.policies.segment import Call
from trainer.tree import PROMPT, Node, Tree

SHORT = {
    "max_turns": 3,
    "max_turn_length": 6,
    "max_observation_length": 40,
    "max_completion_length": 120,
    "tool_timeout": 5.0,
}

# The layout of Qwen2.5's template: tools in the system turn, results as <tool_response> in a user turn.
TOOL_TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}"
    "{%- endfor %}{{ '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role == 'tool' %}"
    "{%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{%- endif %}"
    "{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{%- endif %}"
    "{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}{{ '\\n<tool_call>\\n' }}{{ call.function | tojson }}"
    "{{ '\\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)


@dataclass
class ScriptedAgent:
    """Grows trees by the contract of trainer/policies/segment.py; `write(tree, node)` is the text of the next turn.

    Calls run at once. A turn ends in "stop" if one of its stop strings is in it, else in "eos" or, cut at the limit,
    in "length".
    """

    tokenizer: object
    write: object
    segments: list = field(default_factory=list)

    def grow(self, policy, prompt_ids) -> list[Tree]:
        trees = [Tree(prompt_id) for prompt_id in prompt_ids]
        for tree in trees:
            self._grow(tree, policy, PROMPT, policy.start())
            while branches := policy.expand(tree):
                for branch in branches:
                    self._grow(tree, policy, branch.node, branch.segment)
        return trees

    def _grow(self, tree, policy, parent, segment) -> None:
        self.segments.append(segment)
        roots = sum(node.parent == PROMPT for node in tree.nodes)
        grown = []
        for i in range(segment.count):
            group = tree.nodes[parent].group if parent != PROMPT else roots + i
            group = group if segment.group is None else segment.group
            text = self.write(tree, parent)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            stopped = any(stop in text for stop in segment.stops)
            ids = ids if stopped else [*ids, self.tokenizer.eos_token_id]
            ended = "length" if len(ids) > segment.max_tokens else "stop" if stopped else "eos"
            ids = ids[: segment.max_tokens]
            status = "length" if ended == "length" else "ok"
            node = Node(parent, segment.kind, ids, logprobs=[-1.0] * len(ids), status=status, group=group)
            grown.append((tree.add(node), ended))
        for node, ended in grown:
            self._follow(tree, policy, node, policy.next(tree, node, ended))

    def _follow(self, tree, policy, node, what) -> None:
        if isinstance(what, Call):
            seen = what.run()
            assert seen.token_ids, "an observation has a token"
            group = tree.nodes[node].group
            given = {"status": seen.status, "group": group, "media": seen.media, "extra": seen.extra}
            observation = tree.add(
                Node(node, "observation", seen.token_ids, sampled=False, reward=seen.reward, **given)
            )
            if seen.status != "failed":
                self._follow(tree, policy, observation, policy.next(tree, observation, "observed"))
        elif what is not None:
            self._grow(tree, policy, node, what)


def task_of(make_environment, name="agent"):
    return SimpleNamespace(name=name, path=f"task/{name}.py", make_environment=make_environment, thought_end="</think>")


def policy_of(make_environment, tiny, ids=("a",), length=512, tasks=None, **changes):
    """An AgentStepPolicy over records of one task, or of `tasks`; `changes` are TreeGRPOFields."""
    module, _, processor = tiny
    tasks = tasks or {"agent": task_of(make_environment)}
    names = list(tasks)
    args = TreeGRPOFields(**{"max_turn_length": 64, "max_observation_length": 64, "tool_timeout": 5.0, **changes})
    records = [
        {
            "id": name,
            "question_type": names[i % len(names)],
            "question": f"{name}?",
            "answer": "x",
            "extra": {"hops": 1},
        }
        for i, name in enumerate(ids)
    ]
    tokenizer = getattr(processor, "tokenizer", processor)
    settings = parse_environment_args(args.environment_args)
    return agent_policy(args, records, tasks, tokenizer, module, settings, shape=shape_of(args), length=length)


def turns(*texts):
    """A `write` that gives the n-th text at the n-th turn of a path, the last one also after it."""

    def write(tree, parent):
        depth = 0 if parent == PROMPT else sum(tree.nodes[i].kind == "step" for i in tree.path(parent))
        return texts[min(depth, len(texts) - 1)]

    return write


class Echo:
    """Stateless: one tool that returns its argument."""

    def reset(self, **row):
        self._row = row

    def search(self, query: str) -> str:
        """Echo.

        Args:
            query: anything.

        Returns:
            The same.
        """
        return f"found {query}"

    def _fork(self):
        return self


class ChatEcho(Echo):
    action_form = "tool_calls"


def one_call(name="search", arguments='{"query": "q"}'):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Counter:
    """State without `_fork`: how often `add` was called in this episode; `made` counts calls over all instances."""

    made = 0

    def reset(self, **row):
        self._total = 0

    def add(self, number: int) -> str:
        """Adds.

        Args:
            number: how much.

        Returns:
            The total.
        """
        type(self).made += 1
        self._total += number
        return f"total {self._total}"


class ForkingCounter(Counter):
    def _fork(self):
        copy = type(self)()
        copy._total = self._total
        return copy


def act_by_text(monkeypatch) -> None:
    """A random model writes no tags: every third turn is an answer, one in seven is unreadable, the others act."""

    def read(self, text, ended):
        code = sum(map(ord, text))
        if code % 7 == 0:
            return Turn(fault="I try again.")
        argument = ("left", "down", "right", "up")[code % 4] if "move" in self.tools else str(code % 5)
        return Turn(answered=True) if code % 3 == 0 else Turn(actions=(Action(self.tools[0], argument),))

    monkeypatch.setattr(TagForm, "read", read)


def agent_trainer(tiny_text, folder, made, **settings):
    """A trainer on four records of an environment, with short turns."""
    trainer = text_trainer(tiny_text, folder, rows=text_rows(4), **SHORT | settings)
    trainer.tasks = {"test": task_of(made, made.__name__)}
    return trainer
