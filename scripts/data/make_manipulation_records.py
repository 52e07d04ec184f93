"""Makes manipulation records: a picture of a simulated robot, an instruction, and the episode to execute a plan in.

    pip install -e '.[sim]'
    python scripts/data/make_manipulation_records.py --output_dir runs/manipulation
    python scripts/data/make_manipulation_records.py --output_dir runs/fetch --tasks fetch/reach fetch/pick-and-place

Keeps the seeds for which the expert's plan, executed like a model's, solves the task; the plan is in the record
(`plan`). Tasks are metaworld/NAME (the ten of make_metaworld_trajectories.py) and fetch/reach, fetch/pick-and-place.
Train and test have different seeds. Exit status 2 if the simulator or EGL is missing, or for a wrong argument.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()
sys.path.insert(0, str(Path(__file__).resolve().parent))

from make_metaworld_trajectories import TASKS, TEST_SEEDS, Simulator, SimulatorError
from PIL import Image

from task.runners.optional import MissingPackage
from task.runners.simulators import FETCH_TASKS, POOL, execute, load_fetch

FETCH_TEXTS = {
    "reach": "Move the hand to the red ball.",
    "pick-and-place": "Pick up the black cube and bring it to the red ball.",
}
TEXTS = {f"metaworld/{task}": text for task, text in TASKS.items()} | {
    f"fetch/{task}": text for task, text in FETCH_TEXTS.items()
}
DEFAULT = (
    "metaworld/reach",
    "metaworld/push",
    "metaworld/drawer-close",
    "metaworld/button-press-topdown",
    "fetch/reach",
)
MISSES = 20  # so many consecutive failures of an expert are not by chance


class FetchCamera:
    """Pictures of the start of Fetch episodes."""

    def __init__(self, task: str):
        gymnasium = load_fetch()
        self.env = gymnasium.make(FETCH_TASKS[task], render_mode="rgb_array", width=224, height=224)

    def picture(self, seed: int):
        self.env.reset(seed=seed)
        return self.env.render()

    def close(self) -> None:
        self.env.close()


class SawyerCamera:
    """Pictures of the start of Meta-World episodes, as in make_metaworld_trajectories.py."""

    def __init__(self, task: str):
        self.simulator = Simulator(task)

    def picture(self, seed: int):
        self.simulator.env.seed(seed)
        self.simulator.env.reset()
        return self.simulator.render()

    def close(self) -> None:
        self.simulator.close()


CAMERAS = {"metaworld": SawyerCamera, "fetch": FetchCamera}


def make_records(name: str, split: str, count: int, camera, side: int, folder: Path):
    """Yields `count` records of one task, and writes their pictures (side x side JPEG)."""
    simulator, task = name.split("/")
    seed, misses = TEST_SEEDS if split == "test" else 0, 0
    while count:
        with POOL.use(simulator, task) as environment:
            plan = environment.expert_plan(seed)
            solved = plan is not None and execute(environment, seed, plan)[0]
            environment.reset(seed)
            start = [round(100 * float(metres), 1) for metres in environment.led_to()]
        misses = 0 if solved else misses + 1
        if misses == MISSES:
            raise SimulatorError(f"task {name}: the expert's plan failed {MISSES} times in a row (seeds up to {seed}).")
        if solved:
            record_id = f"{simulator}-{task}-{split}-{seed:07d}"
            picture = Image.fromarray(camera.picture(seed)).resize((side, side), Image.Resampling.LANCZOS)
            picture.save(folder / "images" / f"{record_id}.jpg", quality=90)
            yield {
                "id": record_id,
                "image": f"images/{record_id}.jpg",
                "question": f"{TEXTS[name]} The hand is at {start}.",
                "question_type": "manipulation-sim",
                "answer": {"simulator": simulator, "task": task, "seed": seed},
                "plan": plan,
            }
            count -= 1
        seed += 1


def write_records(folder: Path, names: list[str], counts: dict[str, int], side: int) -> None:
    (folder / "images").mkdir(parents=True, exist_ok=True)
    records = {split: [] for split in counts}
    for name in names:
        simulator, task = name.split("/")
        camera = CAMERAS[simulator](task)
        for split, count in counts.items():
            records[split] += make_records(name, split, count, camera, side, folder)
        camera.close()
        print(f"{name}: {sum(counts.values())} records", flush=True)
    for split, rows in records.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        manifest = f"datasets:\n- json_path: {split}.jsonl\n  data_modality: image\n  sampling_strategy: all\n"
        (folder / f"{split}.yaml").write_text(manifest, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--tasks", nargs="+", choices=TEXTS, default=list(DEFAULT), metavar="TASK", help="tasks (default: five)"
    )
    parser.add_argument("--train", type=int, default=25, help="train records per task (default 25)")
    parser.add_argument("--test", type=int, default=5, help="test records per task (default 5)")
    parser.add_argument("--side", type=int, default=224, help="side of a picture in pixels (default 224)")
    args = parser.parse_args(argv)
    if min(args.train, args.test) < 1 or args.side < 28:
        parser.error("give at least 1 record a task and split, and pictures of at least 28 pixels")
    try:
        write_records(args.output_dir, args.tasks, {"train": args.train, "test": args.test}, args.side)
    except (SimulatorError, MissingPackage) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {args.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
