"""The memory estimate against what models take here: weights, optimiser, keys and values, slots, saved activations."""

import copy
import subprocess
import sys

import pytest
import torch
from bench_cases import bytes_of
from bench_model import PRESETS, build_model, build_processor
from cases import FixedLengths
from engine_cases import encode, engine
from memory import terms
from memory.estimate import Settings, candidates, fitting, peak
from memory.sizes import count, read_config
from memory.terms import Trees, Tuning
from paths import ROOT
from peft import LoraConfig, get_peft_model

from model.qwen_module import Qwen2_5VLModule
from model.vlm_module import EncodedPrompt
from task.errors import UserError
from trainer.engines.batch_forward import BatchForward
from trainer.engines.kv_cache import ForkingCache
from trainer.logprobs.packing import build_plans
from trainer.run.precision import cast_frozen

FEW = 0.1


@pytest.fixture(scope="module")
def bench(one_thread):
    """(model, sizes) of the benchmarks' 27 M model."""
    model = build_model(PRESETS["cpu"], build_processor())
    return model, count(model.config)


@pytest.mark.parametrize(
    ("name", "published"), [("Qwen2.5-VL-3B-Instruct", 3_754_622_976), ("Qwen2.5-VL-7B-Instruct", 8_292_166_656)]
)
def test_the_shipped_configs_have_the_published_number_of_parameters(name, published):
    assert count(read_config(name)).parameters == published


def test_a_model_that_is_no_config_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"no model config could be read from .*give a folder, a config\.json, or one"):
        read_config(str(tmp_path))


def test_weights_are_those_of_the_model(bench, tiny_vlm):
    for model, sizes in (bench, (tiny_vlm[1], count(tiny_vlm[1].config))):
        assert terms.weights(sizes, Tuning("lora", bytes_per_weight=4)) == bytes_of(model.parameters())


def test_weights_of_full_fine_tuning_are_in_float32_where_they_train(tiny_vlm):
    module, model, _ = tiny_vlm
    model = copy.deepcopy(model)
    module.freeze(model, freeze_vision=True)
    cast_frozen(model, "bfloat16")
    assert terms.weights(count(model.config), Tuning("full")) == bytes_of(model.parameters())


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_adapter_gradients_and_optimiser_are_those_of_a_step(bench, mode):
    model, sizes = copy.deepcopy(bench[0]), bench[1]
    module = Qwen2_5VLModule(model.config)
    adapter = 0
    if mode == "lora":
        whole = bytes_of(model.parameters())
        model = get_peft_model(model, LoraConfig(r=16, target_modules=module.lora_target_modules(model)))
        adapter = bytes_of(model.parameters()) - whole
    else:
        for name, weight in model.named_parameters():
            weight.requires_grad_(module.tower_of(name) == "language")
    optimiser = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    ids = torch.randint(1000, 2000, (1, 8))
    model(input_ids=ids, labels=ids).loss.backward()
    optimiser.step()
    states = [value for state in optimiser.state.values() for value in state.values() if value.dim()]
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    wanted = terms.optimiser(sizes, Tuning(mode, rank=16))
    assert adapter + bytes_of(states) + bytes_of(gradients) == pytest.approx(wanted, rel=FEW)


@pytest.mark.parametrize("sides", [(1, 2, 2, 20, 10), (2, 3, 4, 90, 12), (1, 2, 1, 40, 8)], ids=str)
def test_keys_and_values_are_those_that_the_engine_allocates(tiny_vlm, monkeypatch, sides):
    prompts, trunk, branches, trunk_length, branch_length = sides
    sizes, encoded = count(tiny_vlm[1].config), [encode(tiny_vlm[0], "x" * 30, (56, 56))] * prompts
    measured, trees = allocated(tiny_vlm, monkeypatch, encoded, FixedLengths(*sides[1:]))
    shape = Trees(len(encoded[0].ids), 4, trunk, branches, trunk_length, branch_length)
    assert trees[0].unique_tokens() == shape.slots - len(encoded[0].ids) + 1
    assert measured == pytest.approx(terms.kv_cache(sizes, shape.stages(prompts, together=True), 4), rel=FEW)


def test_keys_and_values_of_the_bench_model(bench, tiny_vlm, monkeypatch):
    model, sizes = bench
    encoded = [encode(tiny_vlm[0], "x" * 30, (560, 560))]
    setup = (tiny_vlm[0], model, tiny_vlm[2])
    measured, _ = allocated(setup, monkeypatch, encoded, FixedLengths(4, 4, 64, 16))
    stages = Trees(len(encoded[0].ids), 400, 4, 4, 64, 16).stages(1, together=True)
    assert measured == pytest.approx(terms.kv_cache(sizes, stages, 4), rel=FEW)


def allocated(setup, monkeypatch, prompts: list[EncodedPrompt], policy):
    """(bytes of the cache's buffers after all trees have grown to their limits, the trees)."""
    caches = []
    real = BatchForward.__init__
    monkeypatch.setattr(BatchForward, "__init__", lambda self, *args: (real(self, *args), caches.append(self.cache))[0])
    grower = engine(setup)
    grower.sampler.forbidden = torch.tensor(sorted({*grower.sampler.forbidden.tolist(), *grower.eos_ids}))
    trees = grower.grow(prompts, policy, [str(i) for i in range(len(prompts))])
    (cache,) = caches
    assert isinstance(cache, ForkingCache)
    return bytes_of([room for layer in cache.layers for room in (layer._key_room, layer._value_room)]), trees


@pytest.mark.parametrize("sides", [(4, 4, 12, 5), (3, 1, 9, 4), (1, 6, 2, 20)], ids=str)
def test_slots_are_those_of_the_packed_plan(sides):
    trunk, branches, trunk_length, branch_length = sides
    prompt = EncodedPrompt(list(range(7)), torch.arange(7), 7)
    draw = lambda length: torch.randint(100, 10**6, (length,)).tolist()  # noqa: E731
    trunks = [draw(trunk_length) for _ in range(trunk)]
    rows = [above + draw(branch_length) for above in trunks for _ in range(branches)]
    (plan,) = build_plans([prompt], [0] * len(rows), rows)
    shape = Trees(7, 0, *sides)
    assert plan.slots == shape.slots
    assert max(len(row) for row in rows) + 6 == shape.path


@pytest.mark.parametrize("checkpointing", [False, True], ids=["all saved", "checkpointed"])
@pytest.mark.parametrize(("mode", "dropout"), [("lora", 0.05), ("lora", 0.0), ("full", 0.0)])
def test_saved_activations_are_those_of_a_forward_pass(mode, dropout, checkpointing):
    """Of one more layer: two depths are compared, so that embeddings and head drop out."""
    slots, tuning = 256, Tuning(mode, rank=16, dropout=dropout)
    (few, few_sizes), (many, many_sizes) = (saved(depth, tuning, slots, checkpointing) for depth in (2, 4))
    estimates = [terms.activations(sizes, tuning, slots, checkpointing, 4) for sizes in (few_sizes, many_sizes)]
    assert many - few == pytest.approx(estimates[1] - estimates[0], rel=FEW)


def saved(depth: int, tuning: Tuning, slots: int, checkpointing: bool):
    """(bytes that a bfloat16 forward pass saves for its backward pass, the model's sizes)."""
    preset = copy.deepcopy(PRESETS["cpu"]) | {"dtype": "bfloat16"}
    preset["text"]["num_hidden_layers"] = depth
    model = build_model(preset, build_processor())
    sizes = count(model.config)
    model.model.visual.requires_grad_(False)
    if tuning.mode == "lora":
        module = Qwen2_5VLModule(model.config)
        model = get_peft_model(
            model,
            LoraConfig(r=tuning.rank, lora_dropout=tuning.dropout, target_modules=module.lora_target_modules(model)),
        )
        model.enable_input_require_grads()
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that its address is not used again
        return tensor

    ids = torch.randint(1000, 2000, (1, slots))
    positions = torch.arange(slots).expand(3, 1, -1)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        model(input_ids=ids, position_ids=positions, use_cache=False)
    return sum(storage.nbytes() for storage in kept.values()), sizes


def test_less_memory_means_slower_settings_and_none_is_over_the_margin():
    sizes, trees = count(read_config("Qwen2.5-VL-7B-Instruct")), Trees(640, 512, 4, 4, 384, 128)
    tuning = Tuning("lora", zero=2, processes=8)
    order = candidates(trees)
    found = [fitting(sizes, tuning, trees, card) for card in (16, 24, 32, 48, 80, 141)]
    assert found[0] is None
    places = [order.index(settings) for settings in found[1:]]
    assert places == sorted(places, reverse=True)
    for card, settings in zip((24, 32, 48, 80, 141), found[1:], strict=True):
        assert peak(sizes, tuning, trees, settings) <= 0.9 * card * 1e9


def test_checkpointing_cuts_and_shards_save_memory():
    sizes, trees, tuning = count(read_config("Qwen2.5-VL-3B-Instruct")), Trees(640, 512, 4, 4, 384, 128), Tuning("full")
    whole = peak(sizes, tuning, trees, Settings(False, None, 1))
    assert peak(sizes, tuning, trees, Settings(True, None, 1)) < whole
    assert peak(sizes, tuning, trees, Settings(False, 2048, 1)) < whole
    sharded = Tuning("full", zero=3, processes=8)
    assert terms.weights(sizes, sharded) + terms.optimiser(sizes, sharded) < terms.weights(sizes, tuning)
    assert terms.weights(sizes, Tuning("qlora")) < 0.4 * terms.weights(sizes, tuning)


def run(*words) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "scripts/memory.py", *words], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_a_recipe_is_broken_down_and_flags_override_it():
    done = run(
        "scripts/demo/tiny_model", "--recipe", "config/recipes/grpo_ma_demo.yaml", "--think_num", "2", "--card", "24"
    )
    assert done.returncode == 0, done.stderr
    assert "8 leaves" in done.stdout
    assert "keys and values" in done.stdout and "24 GB, of which 90% may be filled" in done.stdout


@pytest.mark.slow
def test_the_table_on_the_page_is_the_commands_output():
    done = run("--table")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in (ROOT / "docs" / "memory.md").read_text()


@pytest.mark.slow
def test_no_model_is_refused():
    done = run()
    assert done.returncode == 2
    assert "name a MODEL" in done.stderr
