"""train.py on records, tasks and settings that are at fault: one sentence and status 2, or the fault is counted."""

import importlib.util
import json
import sys
from dataclasses import replace

import pytest
from paths import ROOT

from task.task_loader import load_tasks

TYPE = "trajectory-sharerobot"
OF_GRPO_MA = ("think_num", "answer_num", "max_thought_length", "max_answer_length")
ANSWER = [[12.0, 25.0], [60.5, 71.0], [100.0, 110.0]]


@pytest.fixture
def train(tiny_model_dir, tmp_path, monkeypatch, capsys, one_thread):
    """Runs train.py's main on records for a few tiny steps; gives (status, stdout, stderr)."""
    spec = importlib.util.spec_from_file_location("train_under_test", ROOT / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def call(records, *flags, tasks=None):
        (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(record) for record in records))
        (tmp_path / "data.yaml").write_text("datasets:\n- json_path: data.jsonl\n")
        fixed = {
            "dataset_name": tmp_path / "data.yaml", "model_name_or_path": tiny_model_dir, "max_steps": 2,
            "output_dir": tmp_path / "out", "think_num": 2, "answer_num": 1, "max_thought_length": 4,
            "max_answer_length": 4, "report_to": "none", "save_strategy": "no", "gradient_checkpointing": "false",
            "shuffle_dataset": "false", "print_prompt": "false", "use_cpu": "true", "logging_steps": 1,
        }  # fmt: skip
        if "--method" in flags:
            fixed = {name: value for name, value in fixed.items() if name not in OF_GRPO_MA}
        words = [word for name, value in fixed.items() for word in (f"--{name}", str(value))]
        monkeypatch.setattr(sys, "argv", ["train.py", *words, *flags])
        if tasks is not None:
            monkeypatch.setattr(module, "load_tasks", lambda **bound: tasks)
        status = 0
        try:
            module.main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


def record(number, **changes):
    image = ROOT / "metadata" / "demo" / "trajectory" / "images" / f"demo-train-{number:05d}.png"
    fields = {"question": "Move.", "question_type": TYPE, "answer": ANSWER, "image": str(image), "id": f"r{number}"}
    return {key: value for key, value in (fields | changes).items() if value is not None}


def last_line(text):
    return [line for line in text.replace("\r", "\n").splitlines() if line.strip()][-1]


def test_a_question_with_a_picture_token_is_named(train):
    status, _, errors = train([record(0), record(1, question="a <|vision_start|> b")])
    assert status == 2
    assert "train.py: record r1: the text of the user turn contains <|vision_start|>" in last_line(errors)
    assert "Traceback" not in errors


def test_an_answer_of_another_form_stops_before_the_first_step(train):
    status, _, errors = train([record(0, answer="left of the cup")])
    assert status == 2
    assert "train.py: record 'r0': the rewards of" in last_line(errors)


def test_too_few_records_for_one_generation(train):
    status, _, errors = train([record(0)], "--per_device_train_batch_size", "8")
    assert status == 2
    assert "the dataset has 1 prompts, but one generation needs 4" in last_line(errors)


def test_when_every_picture_is_bad_nothing_is_saved(train, tmp_path):
    records = [record(0, image=str(tmp_path / "absent.png")), record(1, image=str(tmp_path / "data.yaml"))]
    status, _, errors = train(records, "--on_bad_media", "skip")
    assert status == 2
    assert "train.py: nothing was trained or saved: every prompt was skipped, such as record 'r0'" in last_line(errors)
    assert not (tmp_path / "out" / "adapter_model.safetensors").exists()


def test_what_kept_every_prompt_from_growing_is_named():
    import train

    history = [{"tool/errors/refused": 6.0, "tool/errors/timeout": 1.0, "reward": 9.0}, {"train_loss": 0.0}]
    assert "most often for tool/errors/refused: see to the tools" in train.why_nothing({}, history)
    assert train.why_nothing({}, [{"tool/errors/refused": 0.0}]) == "no prompt grew an answer"
    assert "record 'r0'" in train.why_nothing({0: "record 'r0': no such file"}, history)


@pytest.mark.parametrize(("failing", "saved"), [({1, 2, 3}, False), ({1, 2, 3, 4}, False), ({2, 3, 4}, True)])
def test_rewards_that_fail_three_generations_in_a_row_are_no_success(train, tmp_path, failing, saved):
    tasks, calls = load_tasks(), []

    def accuracy(completion, sol, **kw):
        if not completion:  # as scored before training
            return 0.0
        calls.append(completion)
        if (len(calls) + 1) // 2 in failing:  # two leaves per generation
            raise KeyError("target")
        return float(len(calls))

    tasks[TYPE] = replace(tasks[TYPE], accuracy_reward=accuracy, self_test=None)
    steps = str(max(failing))
    status, _, errors = train([record(i) for i in range(4)], "--max_steps", steps, tasks=tasks)
    assert status == 2
    assert f"a reward failed on every completion of {len(failing)} generations in a row" in last_line(errors)
    assert "KeyError: 'target'" in last_line(errors)
    assert last_line(errors).startswith("train.py: nothing was trained or saved: ") != saved
    assert (tmp_path / "out" / "adapter_model.safetensors").exists() == saved


def test_a_folder_that_holds_another_run_is_refused(train, tmp_path):
    records = [record(0), record(1)]
    assert train(records)[0] == 0
    status, _, errors = train(records)
    assert status == 2 and "holds another run (log.jsonl, adapter_model.safetensors)" in last_line(errors)
    status, out, _ = train(records, "--resume", "auto")
    assert status == 0 and "the run starts anew, earlier results are in" in out
    assert (tmp_path / "out" / "earlier-1" / "adapter_model.safetensors").exists()
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()


def test_one_bad_picture_is_skipped_and_counted(train, tmp_path):
    status, out, _ = train([record(0), record(1, image=str(tmp_path / "absent.png"))], "--on_bad_media", "skip")
    assert status == 0
    assert last_line(out).endswith("; 1 prompts were skipped")
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()


def test_agents_without_their_tools_are_warned_of(train):
    records = [{"id": f"r{i}", "question": "Who?", "question_type": "search_qa", "answer": "Ann"} for i in range(2)]
    status, _, errors = train(records, "--method", "tree_adv", "--max_completion_length", "8", "--max_steps", "1")
    assert status == 0
    assert "method tree_adv samples a completion in one go and calls no tool" in errors
    assert "search_qa needs one of tree_grpo, gigpo, turn_value to act step by step" in errors


@pytest.mark.parametrize("value", ["good", [1.0], (0.5, 3)], ids=["text", "a list", "no dict"])
def test_a_task_that_breaks_the_contract_in_training(train, value):
    tasks = load_tasks()
    tasks[TYPE] = replace(tasks[TYPE], accuracy_reward=lambda completion, sol, **kw: value, self_test=None)
    status, _, errors = train([record(0), record(1)], tasks=tasks)
    assert status == 2
    assert "trajectory_sharerobot.py: accuracy_reward returned a" in last_line(errors)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--optim", "adamw_bnb_8bit"), "You need to install `bitsandbytes`"),
        (("--lr_scheduler_type", "cosine_with_min_lr"), "One of min_lr or min_lr_rate should be set"),
        (("--lr_scheduler_kwargs", '{"cycles": 2}'), "unexpected keyword argument 'cycles'"),
    ],
    ids=["no package", "no argument", "a wrong argument"],
)
def test_what_a_library_refuses_of_the_optimiser_is_a_sentence(train, monkeypatch, flags, sentence):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    status, _, errors = train([record(0), record(1)], *flags)
    assert status == 2
    assert last_line(errors).startswith("train.py: ")
    assert sentence in last_line(errors)
    assert "Traceback" not in errors


def test_the_reference_of_whole_weights_is_of_the_policys_revision(train, monkeypatch):
    """A model on a hub has revisions, and TRL loads the reference on its own."""
    from trl.trainer import grpo_trainer

    asked, load = {}, grpo_trainer.create_model_from_path
    monkeypatch.setattr(
        grpo_trainer, "create_model_from_path", lambda name, **how: asked.update(how) or load(name, **how)
    )
    flags = ("--use_peft", "false", "--beta", "0.1", "--model_revision", "v2", "--max_steps", "1")
    status, _, _ = train([record(0), record(1)], *flags)
    assert status == 0
    assert asked["revision"] == "v2"


@pytest.mark.parametrize("name", ["adapter_path", "model_name_or_path"])
def test_a_wrong_path_of_a_model_or_an_adapter_leaves_no_folder(train, tmp_path, name):
    status, _, errors = train([record(0)], f"--{name}", str(tmp_path / "absent"))
    assert status == 2 and "absent" in last_line(errors) and "Traceback" not in errors
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_would_run_and_creates_nothing(train, tmp_path):
    status, said, _ = train([], "--dry-run", "--dataset_name", "absent.yaml", "--model_name_or_path", "absent")
    assert status == 0 and "think_num                    2            flag" in said
    assert last_line(said).startswith("dry run: names, types and the method's rules hold")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_extra_reward_is_given_records_and_is_logged(train, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "rewards_of_a_user.py").write_text(
        "def numbered(completions, record, **keywords):\n    return [int(one['id'][1:]) / 10 for one in record]\n"
    )
    flags = ["--extra_reward", "rewards_of_a_user:numbered", "--reward_weights", "0", "0", "1"]
    status, _, errors = train([record(3)], *flags[:-2], "1")
    assert status == 2 and "2 numbers for 3 reward functions (format_reward, accuracy_reward, numbered)" in errors
    status, said, errors = train([record(3), record(3, id="r4")], *flags, "--max_steps", "1")
    assert status == 0, errors
    assert "numbered x 1" in said
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    (value,) = (entry["rewards/numbered/mean"] for entry in log if "rewards/numbered/mean" in entry)
    assert value in (pytest.approx(0.3), pytest.approx(0.4))


@pytest.mark.slow
def test_the_start_up_table_gives_the_steps_that_the_epochs_have(train):
    flags = ["--max_steps", "-1", "--num_train_epochs", "2", "--steps_per_generation", "2"]
    status, said, errors = train([record(0), record(1), record(2)], *flags)
    assert status == 0, errors
    assert "steps                        4 (2 epochs of 3 prompts)" in said
    assert "step 4/4:" in said
