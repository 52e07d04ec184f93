"""Training under FSDP2 from rollouts to checkpoints, as processes; and the forms of FSDP that are refused."""

import shutil
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench")]
from two_processes import start

from trainer.run.layout import _check_fsdp

FLAGS = ["--config", str(ROOT / "config/recipes/grpo_ma_demo.yaml"), "--per_device_train_batch_size", "16"]
FLAGS += ["--max_steps", "2", "--save_strategy", "steps", "--save_steps", "1", "--disable_tqdm", "true"]


@pytest.mark.slow
@pytest.mark.parametrize("peft", ["true", "false"])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path, peft):
    from safetensors.torch import load_file

    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    weights = "adapter_model.safetensors" if peft == "true" else "model.safetensors"
    flags = [__file__, *FLAGS, "--use_peft", peft]
    start([*flags, "--output_dir", str(whole)], processes=2, timeout=120)
    shutil.copytree(whole / "checkpoint-1", resumed / "checkpoint-1")
    said = start([*flags, "--output_dir", str(resumed), "--resume", "auto"], processes=2, timeout=120)
    assert f"going on from {resumed / 'checkpoint-1'}" in said
    first, last, again = (load_file(folder / weights) for folder in (whole / "checkpoint-1", whole, resumed))
    assert last.keys() == again.keys() and all((last[name] == again[name]).all() for name in last)
    assert any((first[name] != last[name]).any() for name in last), "the second step trained nothing"


@pytest.mark.parametrize(("version", "form"), [(1, "FULL_STATE_DICT"), (2, "SHARDED_STATE_DICT")])
def test_forms_whose_weights_are_never_whole_are_refused(version, form):
    _check_fsdp(SimpleNamespace(fsdp_version=2, state_dict_type="StateDictType.FULL_STATE_DICT"))
    with pytest.raises(ValueError, match=f"fsdp_version {version} and fsdp_state_dict_type {form}: set 2 and FULL"):
        _check_fsdp(SimpleNamespace(fsdp_version=version, state_dict_type=f"StateDictType.{form}"))


def main() -> None:
    import fsdp_on_cpu

    fsdp_on_cpu.pretend(timedelta(seconds=60))
    import train

    train.main()


if __name__ == "__main__":
    main()
