"""setup.py, requirements.txt and the built wheel: one version, tested ranges, everything a user needs inside."""

import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from unittest.mock import patch

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from paths import ROOT


@pytest.fixture(scope="module")
def described() -> dict:
    """The arguments setup.py gives to setuptools."""
    with patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    return setup.call_args.kwargs


def test_name_licence_and_python(described):
    assert described["name"] == "grpo-ma"
    assert described["license"] == "Apache-2.0"
    assert described["python_requires"] == ">=3.11"


def test_version_stands_in_one_place(described):
    Version(described["version"])
    elsewhere = [
        path.relative_to(ROOT).as_posix()
        for folder in ("config", "dataset", "model", "task", "trainer", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^__version__\s*=", path.read_text(encoding="utf-8"), re.M)
    ]
    assert elsewhere == []
    assert "version" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace("target-version", "")
    assert f"## {described['version']}" in (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")


def test_packages_and_their_data(described):
    assert {name.split(".")[0] for name in described["packages"]} == {"config", "dataset", "model", "task", "trainer"}
    assert {"trainer.policies", "trainer.engines", "trainer.advantages"} <= set(described["packages"])
    assert described["entry_points"] == {"console_scripts": ["grpo-ma = task.command.main:main"]}
    assert described["package_data"] == {"config": ["recipes/*.yaml"]}


def test_every_requirement_has_a_lower_and_an_upper_bound(described):
    requirements = [Requirement(line) for line in described["install_requires"]]
    for requirement in requirements:
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">=", "<"}, f"{requirement} should state the range that is tested"
    names = {requirement.name for requirement in requirements}
    assert {"torch", "torchvision", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets"} <= names
    assert {"qwen-vl-utils", "pyyaml", "pillow", "scipy", "numpy"} <= names


def test_ranges_that_the_code_depends_on(described):
    ranges = {r.name: r.specifier for r in map(Requirement, described["install_requires"])}
    assert "1.16.0" in ranges["trl"]
    assert "1.17.0" not in ranges["trl"]
    assert "5.24.0" in ranges["transformers"]
    assert "5.25.0" not in ranges["transformers"]


def test_the_installed_versions_are_inside_the_ranges(described):
    outside = [
        f"{requirement.name} {metadata.version(requirement.name)} is not in {requirement.specifier}"
        for requirement in map(Requirement, described["install_requires"])
        if not requirement.specifier.contains(Version(metadata.version(requirement.name)).base_version)
    ]
    assert outside == []


def test_the_changelog_lists_a_tested_version_inside_each_range(described):
    page = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    tested = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", page, re.MULTILINE))
    extras = described["extras_require"]
    on_a_gpu = ("flash", "vllm")
    optional = [line for name in extras if name not in on_a_gpu for line in extras[name]]
    for requirement in map(Requirement, [*described["install_requires"], *optional]):
        assert requirement.specifier.contains(Version(tested[requirement.name])), requirement


def test_third_party_imports_are_required(described):
    """What the packages import at the top of a file is in requirements.txt (by the name it has on a package index)."""
    index_names = {"PIL": "pillow", "yaml": "pyyaml"} | {
        name: name.replace("_", "-") for name in ("qwen_vl_utils", "huggingface_hub")
    }
    ours = {"config", "dataset", "model", "task", "trainer"}
    imported = set()
    for folder in ours:
        for path in (ROOT / folder).rglob("*.py"):
            if path.name.endswith("_judge.py") or "vllm" in path.parts:  # read only where an extra is installed
                continue
            imported |= set(re.findall(r"^(?:import|from) ([A-Za-z_0-9]+)", path.read_text(encoding="utf-8"), re.M))
    third_party = imported - ours - set(sys.stdlib_module_names) - {"vllm"}  # under trainer/engines/vllm/, of an extra
    required = {Requirement(line).name for line in described["install_requires"]}
    assert {index_names.get(name, name) for name in third_party} - required == set()


def test_extras(described):
    extras = {name: [Requirement(line) for line in lines] for name, lines in described["extras_require"].items()}
    assert set(extras) >= {"dev", "flash", "photos", "sim"}
    assert {requirement.name for requirement in extras["dev"]} >= {"pytest", "hypothesis", "ruff"}
    assert [requirement.name for requirement in extras["flash"]] == ["flash-attn"]
    mujoco = next(requirement for requirement in extras["sim"] if requirement.name == "mujoco")
    assert "3.8.1" in mujoco.specifier
    assert "4.0.0" not in mujoco.specifier


def test_licence_is_the_whole_apache_text_and_notice_names_what_we_stand_on():
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert licence.lstrip().startswith("Apache License\n")
    assert "9. Accepting Warranty or Additional Liability." in licence
    assert licence.rstrip().endswith("limitations under the License.")
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for name in ("TRL", "Transformers", "PEFT", "Accelerate", "DeepSpeed", "Qwen", "qwen-vl-utils", "2509.24494"):
        assert name in notice


def test_a_report_carries_the_licence_of_what_it_copies():
    sys.path.insert(0, str(ROOT / "scripts"))
    from report.page import render_page

    licence = (ROOT / "scripts" / "report" / "page_files" / "vendor" / "uPlot.LICENSE").read_text(encoding="utf-8")
    assert licence in render_page("a run", {}, "")


@pytest.mark.slow
def test_wheel_and_sdist_hold_what_they_should(tmp_path):
    build = "from setuptools import build_meta as b; import sys; d = sys.argv[1]; b.build_wheel(d); b.build_sdist(d)"
    copy = tmp_path / "checkout"  # the build writes build/ and *.egg-info beside setup.py
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    for name in ("setup.py", "requirements.txt", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=copy, check=True, capture_output=True)

    names = zipfile.ZipFile(next(tmp_path.glob("grpo_ma-*.whl"))).namelist()
    assert {"task/TEMPLATE.py", "trainer/tree.py", "trainer/policies/__init__.py", "config/__init__.py"} <= set(names)
    assert [n for n in names if n.startswith("config/recipes/") and n.endswith(".yaml")]
    assert not [n for n in names if n.startswith(("scripts/", "tests/", "metadata/"))]
    assert [n for n in names if n.endswith("licenses/NOTICE")]

    with tarfile.open(next(tmp_path.glob("grpo_ma-*.tar.gz"))) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"requirements.txt", "setup.py", "NOTICE"} <= inside


@pytest.mark.slow
def test_python_example_of_the_readme_trains(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"<!-- python-example -->\n```python\n(.*?)```\n<!-- /python-example -->", text, re.S).group(1)
    shortened = example.replace('"runs/python"', repr(str(tmp_path))).replace("max_steps=10", "max_steps=1")
    assert shortened.count(str(tmp_path)) == shortened.count("max_steps=1,") == 1
    # The example stands at the checkout's root, as a reader's script would.
    code = f"{shortened}\nprint('steps', trainer.state.global_step)\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "steps 1" in done.stdout
