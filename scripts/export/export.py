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

from config.evaluated import add_evaluated, check_least, locate_evaluated
from task.errors import UserError
from task.own_tasks import add_task_dir


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
    add("--seed", type=int, default=42, help="seed of random:N selections (default 42)")
    add_evaluated(parser)
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

    locate_evaluated(args, locate)
    check_least(args)
    reader = reader_of(args, models, tool)
    tests = read_tests(args, reader)
    check(tests)
    write_tests(out / "tests", args, reader, tests)
    model_type = reader.config.model_type
    write_model(args, out / model_type, reader, (templates or {}).get(model_type, ""))
    return reader, tests


def to_samples(args: argparse.Namespace, out: Path) -> None:
    from samples import write_samples

    write_samples(Path(args.predictions), out)


if __name__ == "__main__":
    sys.exit(main())
