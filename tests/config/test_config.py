"""Training arguments: what is derived, what is refused and in which words, and how a recipe and flags are read."""

import pytest

from config.grpo_config import GRPOConfig
from config.method_settings import USUAL
from config.methods import SETTINGS
from config.model_config import GRPOModelConfig
from config.parser import RecipeParser
from config.script_arguments import GRPOScriptArguments
from config.startup import print_run, print_settings
from trainer.methods import METHODS


@pytest.fixture
def make(tmp_path):
    return lambda **changes: GRPOConfig(output_dir=str(tmp_path), report_to="none", **changes)


class TestDerived:
    def test_grpo_ma_derives_leaves_length_and_batch(self, make):
        args = make(think_num=3, answer_num=2, max_thought_length=100, max_answer_length=20)
        assert (args.num_generations, args.leaves, args.max_completion_length) == (6, 6, 120)
        assert args.per_device_train_batch_size == 6
        assert args.num_generations_eval == 1

    def test_grpo_has_eight_chains_of_512_tokens_unless_told(self, make):
        args = make(method="grpo")
        assert (args.num_generations, args.max_completion_length, args.per_device_train_batch_size) == (8, 512, 8)
        args = make(method="grpo", num_generations=4, max_completion_length=32)
        assert (args.leaves, args.max_completion_length) == (4, 32)

    def test_several_trees_a_batch(self, make):
        args = make(per_device_train_batch_size=32, gradient_accumulation_steps=2)
        assert (args.steps_per_generation, args.generation_batch_size) == (2, 64)

    def test_a_process_that_miscounts_the_others_is_noticed(self, make, monkeypatch):
        """Without use_cpu resolved first, each of two CPU processes would believe it is alone."""
        monkeypatch.setattr(GRPOConfig, "world_size", property(lambda self: 2))
        with pytest.raises(AssertionError, match="disagree on the world size"):
            make()

    @pytest.mark.parametrize("method", sorted(SETTINGS))
    def test_what_is_left_out_comes_from_the_methods_preset(self, make, method):
        args = make(method=method)
        preset = USUAL | SETTINGS[method].preset
        assert {name: getattr(args, name) for name in preset} == preset
        assert args.from_preset == list(preset)

    def test_what_is_given_is_no_preset(self, make):
        args = make(learning_rate=3e-4, beta=0.04)
        assert (args.learning_rate, args.beta) == (3e-4, 0.04)
        assert set(args.from_preset) == {*USUAL, "loss_type", "sync_prompt_across_ranks"}

    @pytest.mark.parametrize(
        ("given", "meant"),
        [(True, "group"), ("True", "group"), (False, "none"), ("false", "none"), ("batch", "batch"), (None, "group")],
    )
    def test_scales_are_named_as_trl_names_them_and_a_flag_gives_text(self, make, given, meant):
        assert make(scale_rewards=given).scale_rewards == meant

    @pytest.mark.parametrize(
        ("objective", "answer_num", "method", "split"),
        [
            ("auto", 4, "grpo_ma", True),
            ("auto", 1, "grpo_ma", False),
            ("split", 1, "grpo_ma", True),
            ("joint", 4, "grpo_ma", False),
            ("auto", 4, "grpo", False),
        ],
    )
    def test_objective(self, make, objective, answer_num, method, split):
        own = {"objective": objective, "answer_num": answer_num} if method == "grpo_ma" else {}
        assert METHODS[method].two_terms(make(method=method, **own)) is split

    def test_on_a_cpu_it_is_float32_and_says_cpu(self, make, monkeypatch):
        monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
        args = make()
        assert (args.use_cpu, args.bf16) == (True, False)
        assert make(bf16=True).bf16 is True  # asked for

    def test_use_cpu_wins_over_an_accelerator(self, make, monkeypatch):
        monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
        args = make(use_cpu=True)
        assert (args.use_cpu, args.bf16) == (True, False)


REFUSED = {
    "a group of one": ({"think_num": 1, "answer_num": 1}, "think_num=1 and answer_num=1 give a group of one"),
    "a group of one chain": ({"method": "grpo", "num_generations": 1}, "at least 2 generations per prompt"),
    "no thoughts": ({"think_num": 0}, "think_num=0 must be at least 1"),
    "no slots": ({"max_slots": 0}, "max_slots=0 must be at least 1"),
    "a best model by a loss there is none of": (
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 500},
        "metric_for_best_model=loss: evaluation gives no such metric; name a task's, .* trajectory-sharerobot/accuracy",
    ),
    "no rows": ({"per_device_train_batch_size": 0}, "per_device_train_batch_size=0 must be at least 1"),
    "a torn tree": (
        {"per_device_train_batch_size": 24},
        r"16 leaves \(think_num=4 \* answer_num=4\), but per_device_train_batch_size is 24: set it to a multiple of "
        "16, such as 16",
    ),
    "torn chains": (
        {"method": "grpo", "per_device_train_batch_size": 12},
        r"8 leaves \(num_generations=8\), but per_device_train_batch_size is 12",
    ),
    "another number of leaves": ({"num_generations": 8}, r"derives 16 from think_num=4 \* answer_num=4: leave .* out"),
    "another length": (
        {"max_completion_length": 100},
        r"derives 512 from max_thought_length=384 \+ max_answer_length=128",
    ),
    "an uneven window": (
        {"steps_per_generation": 6, "gradient_accumulation_steps": 4},
        "steps_per_generation=6 must be a multiple of gradient_accumulation_steps=4",
    ),
    "a batch of generations": ({"generation_batch_size": 64}, "generation_batch_size is derived"),
    "an unknown method": ({"method": "ppo"}, "method='ppo' is unknown: choose one of .*, grpo_ma, "),
    "an unknown objective": ({"objective": "sum"}, "objective='sum' is unknown: choose one of auto, split, joint"),
    "an unclosed tag": ({"thought_end": "</think"}, "thought_end='</think' lacks its >: give a text such as </think>"),
    "an opening tag": ({"thought_end": "<think>"}, "thought_end='<think>' cannot be told from <think>"),
    "greedy rollouts": ({"temperature": 0.0}, "temperature=0.0 must be above 0"),
    "warm-up on one chain": (
        {"think_num": 1, "answer_warmup_steps": 3},
        "answer_warmup_steps=3 trains on think_num=1 chains",
    ),
    "a dropped record": ({"remove_unused_columns": True}, "would drop the record the rewards read"),
    "the scale of a prompt over a batch": (
        {"method": "reinforce_plus_plus", "scale_rewards": "group"},
        "scale_rewards='group': reinforce_plus_plus normalises over the batch; set it to batch or none, or use",
    ),
    "a weight without two terms": (
        {"thought_weight": 2.0, "objective": "joint"},
        "thought_weight=2.0 weighs one of two terms, and the loss of objective=joint with answer_num=4 has one: leave",
    ),
    "a weight of chains": ({"thought_weight": 0.0, "answer_num": 1}, "objective=auto with answer_num=1 has one"),
    "an endless weight": ({"thought_weight": float("inf")}, "thought_weight=inf must be a finite number"),
    "another scaling": ({"scale_rewards": "std"}, "scale_rewards='std' .*use 'group' or 'batch' or 'none'$"),
    "another aggregation": (
        {"multi_objective_aggregation": "normalize_then_sum"},
        "use 'sum_then_normalize'",
    ),
    "an off-policy mask": ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold=0.5 .*leave it out"),
    "vespo": ({"loss_type": "vespo"}, "loss_type='vespo' is not supported"),
    "luspo": ({"loss_type": "luspo"}, "loss_type='luspo' is not supported"),
    "an unknown loss": ({"loss_type": "gpro"}, "loss_type='gpro' is not supported .*'grpo'"),
    "an unknown ratio": ({"importance_sampling_level": "word"}, "use 'token' or 'sequence'"),
    "one sequence ratio over both parts": (
        {"importance_sampling_level": "sequence", "objective": "joint"},
        "importance_sampling_level='sequence' averages the advantages",
    ),
    "high entropy only": ({"top_entropy_quantile": 0.2}, "top_entropy_quantile=0.2 is not supported"),
    "an entropy bonus": ({"entropy_coef": 0.01}, "entropy_coef=0.01 is not supported"),
    "an adaptive bonus": ({"use_adaptive_entropy": True}, "use_adaptive_entropy=True is not supported"),
    "a router loss": ({"router_aux_loss_coef": 0.01}, "router_aux_loss_coef=0.01 is not supported"),
    "scattered weights": ({"ds3_gather_for_generation": False}, "ds3_gather_for_generation=False is not supported"),
    "a moving reference": ({"sync_ref_model": True, "beta": 0.1}, "sync_ref_model=True is not supported"),
    "settings of generate()": ({"generation_kwargs": {"top_k": 1}}, "generation_kwargs=.*leave it out"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_rule_and_the_way_out(make, case):
    changes, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=sentence):
        make(**changes)


def test_one_thought_or_one_answer_is_allowed(make):
    assert make(think_num=4, answer_num=1).leaves == make(think_num=1, answer_num=4).leaves == 4


class TestModelConfig:
    def test_lora_is_the_releases_without_dropout(self):
        config = GRPOModelConfig()
        assert (config.use_peft, config.lora_r, config.lora_alpha, config.lora_dropout) == (True, 64, 128, 0.0)
        assert config.freeze_vision is True

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"lora_vision": True}, "freeze_vision is True: set freeze_vision to false"),
            ({"lora_r": 0}, "lora_r=0 must be at least 1; for full fine-tuning set use_peft to false"),
            ({"min_pixels": 4000, "max_pixels": 3000}, "min_pixels=4000 is above max_pixels=3000"),
        ],
    )
    def test_refused(self, changes, sentence):
        with pytest.raises(ValueError, match=sentence):
            GRPOModelConfig(**changes)

    @pytest.mark.parametrize(
        ("dtype", "bf16", "weights"),
        [("auto", True, "bfloat16"), ("auto", False, "float32"), ("float32", True, "float32")],
    )
    def test_weights_have_a_stated_type(self, dtype, bf16, weights):
        assert GRPOModelConfig(dtype=dtype).resolve_dtype(bf16) == weights

    def test_full_fine_tuning_has_no_lora_config(self):
        assert GRPOModelConfig(use_peft=False).lora(module=None, model=None) is None


@pytest.fixture
def parse(tmp_path, monkeypatch, capsys):
    """Parses a recipe (as text, or None) and flags; returns the dataclasses and the parser, or (status, message)."""

    def call(recipe=None, *flags, equals=False):
        argv = ["--output_dir", str(tmp_path / "out"), *flags]
        if recipe is not None:
            path = tmp_path / "recipe.yaml"
            path.write_text(recipe)
            argv = [f"--config={path}", *argv] if equals else ["--config", str(path), *argv]
        parser = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig))
        try:
            return parser.parse(argv), parser
        except SystemExit as end:
            return end.code, capsys.readouterr().err

    return call


class TestParser:
    def test_flags_win_over_the_recipe_and_each_value_knows_its_source(self, parse):
        (script, args, model), parser = parse(
            "dataset_name: [a.yaml, b.yaml]\nthink_num: 3\nlearning_rate: 1.0e-4\nlora_r: 8\n", "--think_num", "5"
        )
        assert script.dataset_name == ["a.yaml", "b.yaml"]
        assert (args.think_num, args.learning_rate, model.lora_r) == (5, 1e-4, 8)
        sources = {name: parser.provenance.get(name) for name in ("think_num", "learning_rate", "beta", "lora_r")}
        assert sources == {"think_num": "flag", "learning_rate": "recipe", "beta": None, "lora_r": "recipe"}

    def test_config_may_be_given_with_an_equals_sign(self, parse):
        (_, args, _), _ = parse("think_num: 3\n", equals=True)
        assert args.think_num == 3

    def test_flags_alone_are_enough_and_dashes_are_underscores(self, parse):
        (_, args, _), parser = parse(None, "--think-num=3", "--beta=0.1")
        assert (args.think_num, args.beta) == (3, 0.1)
        assert parser.provenance["think_num"] == "flag"

    def test_null_keeps_the_default_and_false_means_false(self, parse):
        (_, args, model), _ = parse("beta: null\nuse_peft: false\nsync_prompt_across_ranks: false\n")
        assert args.beta == 0.0
        assert "beta" in args.from_preset
        assert model.use_peft is False
        assert args.sync_prompt_across_ranks is False

    def test_a_mapping_reaches_its_field(self, parse):
        (_, args, _), _ = parse("gradient_checkpointing_kwargs:\n  use_reentrant: false\n")
        assert args.gradient_checkpointing_kwargs == {"use_reentrant": False}

    def test_env_sets_environment_variables(self, parse, monkeypatch):
        import os

        monkeypatch.setenv("GRPO_MA_TEST_VALUE", "before")
        parse("env:\n  GRPO_MA_TEST_VALUE: 7\n")
        assert os.environ["GRPO_MA_TEST_VALUE"] == "7"

    @pytest.mark.parametrize(
        ("recipe", "flags", "sentence"),
        [
            ("thnk_num: 3\n", (), "unknown key 'thnk_num': did you mean think_num?"),
            (None, ("--answr_num", "3"), "unknown argument --answr_num: did you mean answer_num?"),
            (None, ("--answer-nmu=3",), "unknown argument --answer-nmu: did you mean answer_num?"),
            (None, ("--think", "3"), "unknown argument --think"),
            (None, ("7",), "unknown argument 7"),
            ("think_num: 3\nthink_num: 4\n", (), "key 'think_num' occurs twice"),
            ("think_num: many\n", (), "argument --think_num/--think-num: 'many' is neither a whole number nor auto"),
            ("method: ppo\n", (), "argument --method: invalid choice: 'ppo'"),
            (None, ("--on_bad_media", "ignore"), "invalid choice: 'ignore'"),
            ("lora_r: 0\n", (), "lora_r=0 must be at least 1"),
            ("think_num: 1\nanswer_num: 1\n", (), "give a group of one completion"),
            ("- think_num\n", (), "must be a YAML mapping of names to values, got list"),
            ("think_num: [1\n", (), "is not valid YAML"),
            ("? [think_num]\n: 1\n", (), "found unhashable key"),
            ("{}\n", ("--config", "other.yaml"), "--config was given 2 times"),
            (None, ("--config", "absent.yaml"), "recipe absent.yaml cannot be read: No such file"),
            (None, ("--config",), "--config needs the path of a YAML recipe"),
        ],
    )
    def test_a_mistake_is_one_sentence_and_status_2(self, parse, recipe, flags, sentence):
        status, message = parse(recipe, *flags)
        assert status == 2
        assert sentence in message
        assert len(message.strip().splitlines()) == 1


def test_the_start_up_table_names_model_data_folder_steps_and_reward_weights(parse, capsys):
    (_, args, _), _ = parse("max_steps: 1200\n")
    capsys.readouterr()
    print_run("some/model", ["a.yaml", "b.yaml"], args, {"format_reward": 1.0, "accuracy_reward": 0.5}, prompts=10)
    table = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert table == {
        "model": "some/model", "data": "a.yaml, b.yaml", "output_dir": args.output_dir, "steps": "1,200",
        "rewards": "format_reward x 1, accuracy_reward x 0.5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "steps"),
    [
        ("num_train_epochs: 3\n", "30 (3 epochs of 10 prompts)"),
        ("num_train_epochs: 1.5\nsteps_per_generation: 4\n", "12 (1.5 epochs of 10 prompts)"),
        (
            "num_train_epochs: 2\nsteps_per_generation: 2\ngradient_accumulation_steps: 2\n",
            "10 (2 epochs of 10 prompts)",
        ),
    ],
)
def test_the_start_up_table_gives_the_steps_of_the_epochs(parse, capsys, recipe, steps):
    (_, args, _), _ = parse(recipe)
    print_run("some/model", ["a.yaml"], args, {}, prompts=10)
    assert steps in capsys.readouterr().out


def test_the_start_up_table_marks_where_each_value_comes_from(parse, capsys):
    (_, args, _), parser = parse("think_num: 3\nsave_steps: 3\nsteps_per_generation: 2\n", "--beta", "0.1")
    capsys.readouterr()
    print_settings(args, parser.provenance)
    lines = capsys.readouterr().out.splitlines()
    table = {line.split()[0]: " ".join(line.split()[2:]) for line in lines[:-1]}
    expected = {
        "think_num": "recipe",
        "beta": "flag",
        "learning_rate": "preset of grpo_ma",
        "num_generations": "derived",
        "answer_num": "default",
    }
    assert {name: table[name] for name in expected} == expected
    assert lines[-1].strip() == "saves and evaluations wait for the end of a generation, which is used for 2 steps"


def test_agents_whose_rollouts_all_count_as_cut_are_refused():
    with pytest.raises(ValueError, match="mask_truncated_completions=true would mask out every agent rollout"):
        GRPOConfig(output_dir="x", method="tree_grpo", mask_truncated_completions=True, use_cpu=True)
