"""Exports a model and a test set to lmms-eval or VLMEvalKit, or predictions to lmms-eval's samples.

    grpo-ma export lmms-eval --adapter_path runs/mine --dataset metadata/mine/test.yaml --output_dir exported
    bash exported/run.sh                           # in the environment of lmms-eval
    grpo-ma export vlmevalkit --adapter_path runs/mine --dataset metadata/mine/test.yaml --output_dir exported
    grpo-ma export samples --predictions runs/mine/eval --output_dir samples

Of the first two, --output_dir gets
    MODEL_TYPE/        the model, an adapter merged into its base, with the processor and the picture limits of its
                       training, a chat template with the switches of --chat_template_kwargs, and generation settings
                       without the penalties that a base model's checkpoint may ask for
    tests/             the records as tasks of the other tool, and the pictures in the size in which the model sees them
    run.sh             the command
and their scores come from the tasks' own rewards and metrics, so that they equal those of eval.py. The other tool's
environment needs this checkout on PYTHONPATH, or installed. `samples` writes what lmms-eval writes with --log_samples.

Exit status 2 for a user's mistake, with one sentence.
"""

import argparse
import shutil
import sys
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import locate, use_checkout

ROOT = use_checkout()
warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # peft's name for checkpointing
sys.path.insert(0, str(ROOT / "scripts" / "export"))

from task.errors import UserError
from task.own_tasks import add_task_dir
from task.task_loader import MODEL_FRAMES

LEAST = {"limit": 1, "temperature": 0, "max_new_tokens": 1}


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    try:
        with whole_folder(args.output_dir) as out:
            args.export(args, out)
    except (UserError, OSError) as error:
        print(f"export.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("export.py: interrupted: nothing was written.", file=sys.stderr)
        return 130
    print(f"written to {args.output_dir}")
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    tools = parser.add_subparsers(required=True, metavar="lmms-eval|vlmevalkit|samples")
    for name, export in (("lmms-eval", to_lmms_eval), ("vlmevalkit", to_vlmevalkit)):
        tool = tools.add_parser(name, help=f"a model and a test set for {name}", allow_abbrev=False)
        tool.set_defaults(export=export)
        add_run(tool)
    tool = tools.add_parser("samples", help="predictions of eval.py as lmms-eval's samples", allow_abbrev=False)
    tool.set_defaults(export=to_samples)
    tool.add_argument("--predictions", required=True, metavar="FOLDER", help="output_dir of eval.py")
    add_output(tool)
    return parser.parse_args(argv)


def add_run(parser: argparse.ArgumentParser) -> None:
    """What eval.py is told about a model and its records, under the same names."""
    add = parser.add_argument
    add("--model_name_or_path", help="folder of a whole model, or base of the adapter (default: the one it names)")
    add("--adapter_path", help="LoRA checkpoint folder; it is merged")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="dtype of the merged model (default: float32)")
    add(
        "--dataset_name",
        "--dataset",
        dest="dataset",
        nargs="+",
        required=True,
        metavar="MANIFEST",
        help="one or more manifests or record files, the test set",
    )
    add("--image_root", help="folder that relative media paths start from (default: the manifest's data_root)")
    add("--limit", type=int, help="export only the first N records")
    add("--seed", type=int, default=42, help="seed of random:N selections (default 42)")
    add("--temperature", type=float, default=0.0, help="0 = greedy (default); above 0 samples")
    add("--max_new_tokens", type=int, default=512, help="longest completion in tokens (default 512)")
    add("--max_pixels", type=int, help="larger pictures are scaled down to this many pixels (default: the processor's)")
    add("--min_pixels", type=int, help="smaller pictures are scaled up to this many pixels (default: the processor's)")
    add("--thought_end", default="</think>", help="tag that closes a thought, as in training (default </think>)")
    add(
        "--coordinate_frame",
        choices=MODEL_FRAMES,
        help="scale on which the model writes coordinates, as in training (default: the model family's)",
    )
    add("--chat_template_kwargs", help="JSON object of switches of the chat template, as in training")
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output_dir", required=True, help="a new or empty folder")
    add_task_dir(parser)


@contextmanager
def whole_folder(name: str):
    """A folder inside `name` whose files move up once all are written; if that fails, nothing is left behind."""
    out = Path(name).resolve()
    part = out / ".part"  # inside, since `name` may be a mount or a link; a killed export may have left one
    if out.exists() and not (out.is_dir() and all(one == part for one in out.iterdir())):
        raise UserError(f"--output_dir {name} is not an empty folder: name a new one.")
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        make_new(part, name)
        yield part
        for one in list(part.iterdir()):
            one.replace(out / one.name)
        part.rmdir()
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):  # from the innermost, up to one that was not created or holds other files
            for folder in new:
                folder.rmdir()
        raise


def make_new(part: Path, name: str) -> None:
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"--output_dir {name} cannot be written ({error.strerror}): name another folder.") from error


def to_lmms_eval(args: argparse.Namespace, out: Path) -> None:
    from lmms_eval_files import MODELS, TEMPLATES, write_files

    reader, tests = prepared(args, out, MODELS, "lmms-eval", templates=TEMPLATES)
    write_files(args, out, reader, tests)


def to_vlmevalkit(args: argparse.Namespace, out: Path) -> None:
    from vlmevalkit_files import MODELS, check_rows, write_files

    reader, tests = prepared(args, out, MODELS, "VLMEvalKit", check_rows)
    write_files(args, out, reader, tests)


def prepared(
    args: argparse.Namespace,
    out: Path,
    models: dict,
    tool: str,
    check=lambda tests: None,
    templates: dict | None = None,
) -> tuple:
    """(module with its processor, exported records by task), after the model and the records are written.

    Args:
        models: model type -> its name in the tool.
        check: raises UserError for records that the tool cannot run.
        templates: model type -> what its chat template begins with.
    """
    from exported_model import reader_of, write_model
    from exported_records import read_tests, write_tests

    for name in ("model_name_or_path", "adapter_path"):
        setattr(args, name, getattr(args, name) and locate(getattr(args, name)))
    args.dataset = [locate(path) for path in args.dataset]
    check_settings(args)
    reader = reader_of(args, models, tool)
    tests = read_tests(args, reader)
    check(tests)
    write_tests(out / "tests", args, reader, tests)
    model_type = reader.config.model_type
    write_model(args, out / model_type, reader, (templates or {}).get(model_type, ""))
    return reader, tests


def check_settings(args: argparse.Namespace) -> None:
    """UserError for a setting that the other tool would fail on, or read as another one."""
    for name, least in LEAST.items():
        value = getattr(args, name)
        if value is not None and not least <= value < float("inf"):
            raise UserError(f"--{name} {value}: it must be at least {least}.")


def to_samples(args: argparse.Namespace, out: Path) -> None:
    from samples import write_samples

    write_samples(Path(args.predictions), out)


if __name__ == "__main__":
    sys.exit(main())
