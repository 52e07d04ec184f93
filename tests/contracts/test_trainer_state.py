"""Where the trainer keeps its state: set in `__init__`, in its `generation`, or at a seam of TRL, and nowhere else."""

import ast

import pytest
from paths import ROOT

# Attributes assigned outside of `__init__`, and why.
ASSIGNED = {
    "generation": "the rollouts at hand, replaced as a whole by the next",
    "sampler": "TRL asks for the sampler, and the prefetch for what it draws next",
    "_step": "TRL's count of micro-steps, after a resume in mid-generation",
    "_buffered_inputs": "TRL's micro-batches of a generation",
    "control": "what the callbacks of an evaluation return, as in transformers",
}
# Attributes that are exchanged for the length of a call, by `swapped` alone.
SWAPPED = {"num_generations", "mask_truncated_completions", "importance_sampling_level", "_saving", "gather"}
SWAPPED |= {"use_vllm"}
FILES = ("trainer/grpo_ma_trainer.py", "trainer/zero_spread/scoring.py", "trainer/run/checkpoints.py")


def stores(tree: ast.AST) -> set[str]:
    """Attributes of `self` that a class assigns outside of `__init__`."""
    found = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name != "__init__":
            for node in ast.walk(function):
                own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
                if own and isinstance(node.ctx, ast.Store | ast.Del):
                    found.add(node.attr)
    return found


def trainer_classes(file: str) -> list[ast.ClassDef]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    callbacks = {"SaveAtWindowEnd"}  # has a state of its own
    return [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name not in callbacks]


def swaps(tree: ast.AST) -> set[str]:
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "swapped"]
    return {keyword.arg for call in calls for keyword in call.keywords}


@pytest.mark.parametrize("file", FILES)
def test_only_listed_attributes_are_assigned_outside_of_init(file):
    classes = trainer_classes(file)
    assert classes
    for found in classes:
        assert stores(found) <= set(ASSIGNED), found.name


def test_every_listed_attribute_is_assigned():
    assert set.union(*(stores(found) for file in FILES for found in trainer_classes(file))) == set(ASSIGNED)


def test_attributes_of_trl_are_exchanged_by_one_context_manager():
    assert set.union(*(swaps(found) for file in FILES for found in trainer_classes(file))) == SWAPPED


@pytest.mark.parametrize("line", ["self.hidden = 1", "self.hidden += 1", "del self.hidden", "self.a, self.b = 1, 2"])
def test_an_injected_assignment_is_found(line):
    (trainer,) = trainer_classes(FILES[0])
    step = next(f for f in trainer.body if isinstance(f, ast.FunctionDef) and f.name == "_grow")
    step.body.append(ast.parse(line).body[0])
    assert not stores(trainer) <= set(ASSIGNED)


def test_a_swap_ends_with_the_former_value_also_after_an_error():
    from trainer.swapped import swapped

    class Owner:
        a, b = 1, 2

    def fail(owner):
        with swapped(owner, a=3, b=4):
            assert (owner.a, owner.b) == (3, 4)
            raise KeyError

    owner = Owner()
    with pytest.raises(KeyError):
        fail(owner)
    assert (owner.a, owner.b) == (1, 2)
