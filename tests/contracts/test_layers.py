"""Who may import whom, read from the sources: a lower layer never imports a higher one, and few files import TRL."""

import ast
from fnmatch import fnmatch
from pathlib import Path

import pytest
from paths import ROOT

# Lowest first; a file belongs to the first pattern it matches.
LAYERS = [
    (-1, "task/command/packages.py"),
    (0, "trainer/tree.py"),
    (0, "trainer/__init__.py"),
    (0, "trainer/advantages/*.py"),
    (0, "task/*.py"),
    (1, "dataset/*.py"),
    (1, "model/*.py"),
    (2, "trainer/policies/*.py"),
    (3, "trainer/rollout.py"),
    (3, "trainer/generation.py"),
    (3, "trainer/processes.py"),
    (3, "trainer/swapped.py"),
    (3, "trainer/prompts.py"),
    (3, "trainer/sampler.py"),
    (3, "trainer/engines/*.py"),
    (3, "trainer/logprobs/*.py"),
    (3, "trainer/logs/*.py"),
    (3, "trainer/evaluation/*.py"),
    (3, "trainer/budget/*.py"),
    (3, "trainer/run/*.py"),
    (3, "trainer/zero_spread/*.py"),
    (4, "config/*.py"),
    (5, "trainer/*.py"),
    (6, "train.py"),
    (6, "scripts/*.py"),
]
PACKAGES = ("config", "dataset", "model", "task", "trainer")
HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "deepspeed"}
MAY_IMPORT_TRL = (
    "config/*.py",
    "trainer/grpo_ma_trainer.py",
    "trainer/zero_spread/scoring.py",
    "trainer/engines/whole_policy.py",
    "scripts/*.py",
)
LONGEST_FILE, LONGEST_FUNCTION = 400, 80  # lines


def sources() -> list[str]:
    files = [path for folder in (*PACKAGES, "scripts") for path in (ROOT / folder).rglob("*.py")]
    files += [path for path in (ROOT / "train.py",) if path.exists()]
    return sorted(path.relative_to(ROOT).as_posix() for path in files)


def layer_of(name: str) -> int:
    return next(layer for layer, pattern in LAYERS if fnmatch(name, pattern))


def parse(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"), filename=name)


def imports_of(tree: ast.AST, name: str) -> set[str]:
    """Dotted names a file imports, anywhere in it; `from task import x` gives both task and task.x."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = list(Path(name).parent.parts)
                base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def module_file(dotted: str) -> str | None:
    """The project file a dotted name stands for, or None for everything else."""
    if dotted.split(".")[0] not in PACKAGES:
        return None
    path = ROOT.joinpath(*dotted.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.exists():
            return candidate.relative_to(ROOT).as_posix()
    return None


def violations(name: str, imported: set[str]) -> list[str]:
    """Imports of `name` that go upwards, or sideways into another package of the same layer."""
    found = []
    for target in sorted({module_file(dotted) for dotted in imported} - {None, name}):
        upwards = layer_of(target) > layer_of(name)
        sideways = layer_of(target) == layer_of(name) and target.split("/")[0] != name.split("/")[0]
        if (upwards or sideways) and layer_of(name) < 6 and not target.endswith("__init__.py"):
            found.append(f"{name} (layer {layer_of(name)}) imports {target} (layer {layer_of(target)})")
    return found


def test_imports_point_downwards():
    assert [line for name in sources() for line in violations(name, imports_of(parse(name), name))] == []


def test_the_rule_sees_an_upward_import():
    tree = ast.parse("def f():\n    from trainer.evaluation import predict\n")
    assert violations("task/task_loader.py", imports_of(tree, "task/task_loader.py")) != []
    tree = ast.parse("from .task_loader import load_tasks")
    assert imports_of(tree, "task/smoke.py") >= {"task.task_loader"}
    assert violations("task/smoke.py", imports_of(tree, "task/smoke.py")) == []
    assert violations("dataset/x.py", {"model.registry"}) != []


def test_only_config_and_the_trainer_import_trl():
    users = [n for n in sources() if "trl" in {dotted.split(".")[0] for dotted in imports_of(parse(n), n)}]
    assert [name for name in users if not any(fnmatch(name, pattern) for pattern in MAY_IMPORT_TRL)] == []
    assert "config/grpo_config.py" in users


@pytest.mark.parametrize("name", [n for n in sources() if layer_of(n) == 0])
def test_lowest_layer_imports_no_heavy_library(name):
    top_level = ast.Module([node for node in parse(name).body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    assert {dotted.split(".")[0] for dotted in imports_of(top_level, name)} & HEAVY == set()


def test_no_file_or_function_outgrows_its_reader():
    long = []
    for name in sources():
        lines = (ROOT / name).read_text(encoding="utf-8").count("\n")
        long += [f"{name}: {lines} lines"] if lines > LONGEST_FILE else []
        for node in ast.walk(parse(name)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST_FUNCTION:
                long.append(f"{name}: {node.name} has {node.end_lineno - node.lineno + 1} lines")
    assert long == []


def test_no_module_is_a_drawer_for_leftovers():
    assert [name for name in sources() if Path(name).stem in ("utils", "helpers", "misc", "common")] == []


def test_package_files_are_empty_or_name_tables():
    for name in sources():
        if name.endswith("__init__.py"):
            kinds = {type(node) for node in parse(name).body}
            assert kinds <= {ast.Expr, ast.Import, ast.ImportFrom, ast.Assign}, f"{name} does more than name things"
