"""What a method needs stands in its settings file and in the table: no other code asks which method it runs."""

import ast
from fnmatch import fnmatch

import pytest
from paths import ROOT

FOLDERS = ("config", "dataset", "model", "scripts", "task", "trainer")
OWN = ("config/methods/*.py", "trainer/methods.py")


def is_method(node: ast.AST) -> bool:
    """`method`, `args.method`, `settings["method"]`, `getattr(args, "method")` or `settings.get("method")`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "method"
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        return name in ("get", "getattr") and any(getattr(a, "value", None) == "method" for a in node.args)
    return getattr(node, "id", None) == "method" or getattr(node, "attr", None) == "method"


def names(node: ast.AST) -> bool:
    """Whether the expression holds a text that stands there as such."""
    return any(isinstance(inner, ast.Constant) and isinstance(inner.value, str) for inner in ast.walk(node))


def comparisons(source: str) -> list[int]:
    """Lines on which a method is compared with a text: ==, !=, in, match, startswith, or as the key of a dict there."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            asked = any(map(is_method, sides)) and any(names(side) for side in sides if not is_method(side))
        elif isinstance(node, ast.Match):
            asked = is_method(node.subject)
        elif isinstance(node, ast.Subscript):
            asked = isinstance(node.value, ast.Dict) and is_method(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_text = is_method(node.func.value) and node.func.attr in ("startswith", "endswith")
            of_dict = isinstance(node.func.value, ast.Dict) and any(map(is_method, node.args))
            asked = of_text or of_dict
        else:
            continue
        found += [node.lineno] if asked else []
    return found


def sources() -> list[str]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")] + [ROOT / "train.py"]
    return sorted(path.relative_to(ROOT).as_posix() for path in files)


def test_no_method_is_named_outside_its_settings_and_the_table():
    checked = [name for name in sources() if not any(fnmatch(name, pattern) for pattern in OWN)]
    assert {"train.py", "trainer/grpo_ma_trainer.py", "config/checks.py"} <= set(checked)
    found = {name: comparisons((ROOT / name).read_text(encoding="utf-8")) for name in checked}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        'x = args.method == "grpo_ma"',
        'x = "grpo" != method',
        'x = self.args.method in ("grpo", "tree_adv")',
        'x = settings["method"] not in {"grpo"}',
        'x = getattr(args, "method") == "grpo"',
        'x = settings.get("method", "grpo") == "grpo"',
        'x = args.method.startswith("tree")',
        'x = {"grpo": 8}[args.method]',
        'x = {"grpo": 8}.get(args.method, 16)',
        'match args.method:\n    case "grpo":\n        x = 8',
    ],
)
def test_a_comparison_is_found(line):
    assert comparisons(f"def f(args, method, settings, self):\n    {line.replace(chr(10), chr(10) + '    ')}") == [2]


@pytest.mark.parametrize(
    "line",
    [
        "x = METHODS[args.method].acts",
        "x = method == other.method",
        'x = f"method {args.method}"',
        'x = {"method": "grpo"}',
        'x = name == "grpo"',
    ],
)
def test_what_is_no_comparison_passes(line):
    assert comparisons(line) == []
