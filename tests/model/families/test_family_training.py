"""Two steps of GRPO-MA from a family's folder: what trains, what is saved, merged and evaluated."""

import copy

import pytest
import torch
from engine_cases import engine
from evaluation_cases import make_task
from family_cases import FAMILIES, built
from family_runs import NAMES, lora_trainer, picture_rows, prompts_of, saved
from trainer_cases import weights

from model.loading import load_policy
from scripts.merge_adapter import largest_gap, logits_of, merge
from trainer.engines.sampling import Sampling
from trainer.evaluation.predict import predict


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """name -> (trainer after two steps, its weights before, folder of the base model, folder of the adapter)."""
    runs = {}

    def run(name: str):
        if name not in runs:
            folder = tmp_path_factory.mktemp(name)
            base = saved(name, folder / "base")
            trainer = lora_trainer(base, folder)
            before = weights(trainer)
            trainer.train()
            trainer.save_model(str(folder / "adapter"))
            runs.clear()  # one family in memory at a time
            runs[name] = (trainer, before, base, folder / "adapter")
        return runs[name]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
class TestTraining:
    def test_two_steps_change_every_adapter_weight_and_nothing_else(self, name, trained):
        trainer, before, _, _ = trained(name)
        assert trainer.forward.sharing == FAMILIES[name].packed
        after = weights(trainer)
        moved = {key for key in after if not torch.equal(before[key], after[key])}
        assert moved == {key for key in after if ".lora_" in key}
        assert {trainer.module.tower_of(key) for key in moved} == {"language"}

    def test_an_adapter_loads_and_merges_with_the_logits_it_was_trained_to(
        self, name, trained, tmp_path, record_property
    ):
        trainer, _, base, adapter = trained(name)
        prompts = prompts_of(trainer.module)
        wanted = logits_of(trainer.model.eval(), trainer.module, prompts)
        untrained = logits_of(load_policy(str(base), dtype="float32")[1].eval(), trainer.module, prompts)
        merge(str(adapter), tmp_path / "merged", str(base), "float32")
        for place in ((str(base), str(adapter)), (str(tmp_path / "merged"), None)):
            module, model, _ = load_policy(*place, dtype="float32")
            found = logits_of(model.eval(), module, prompts_of(module))
            for got, one in zip(found, wanted, strict=True):
                torch.testing.assert_close(got, one, atol=1e-5, rtol=0)
        record_property("gap", largest_gap(found, wanted))
        assert max((a - b).abs().max() for a, b in zip(wanted, untrained, strict=True)) > 1e-3

    def test_an_evaluation_in_batches_answers_as_one_row_at_a_time(self, name, tmp_path):
        module, model, processor = built(name)
        rows = [{**row} for row in picture_rows(tmp_path, 5)]
        grower = engine((module, copy.deepcopy(model), processor), Sampling(temperature=0))
        tasks = {"test": make_task("test")}
        answers = [
            [item["completion"] for item in predict(grower, module, rows, tasks, max_new_tokens=8, batch_size=size)]
            for size in (1, 5)
        ]
        assert answers[0] == answers[1] and len(set(answers[0])) > 1
