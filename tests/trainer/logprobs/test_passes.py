"""Old, reference and policy pass agree at the start, with dropout and from an adapter, and after a resume too."""

import copy
import json

import torch
from peft import LoraConfig, get_peft_model
from trainer_cases import length_reward, logged, settings, text_rows, text_trainer

from model.loading import load_adapter
from trainer.grpo_ma_trainer import GRPOMATrainer


def lora(module, model, **changes) -> LoraConfig:
    return LoraConfig(r=4, target_modules=module.lora_target_modules(model), task_type="CAUSAL_LM", **changes)


def watch(trainer) -> list[torch.Tensor]:
    """Log-probs of every pass, in the order computed."""
    passes = []
    original = trainer._get_per_token_logps_and_entropies

    def log_probs(*args, **kwargs):
        result = original(*args, **kwargs)
        passes.append(result[0].detach().clone())
        return result

    trainer._get_per_token_logps_and_entropies = log_probs
    return passes


def test_dropout_leaves_the_first_update_of_a_fresh_adapter_alone(tiny_text, tmp_path):
    """Ratio 1 and KL 0 at every token of every leaf: lora_B starts at zero, so dropout has nothing to drop yet."""
    module, model, _ = tiny_text
    changes = {"peft_config": lora(module, model, lora_dropout=0.1), "beta": 0.1, "num_iterations": 2, "max_steps": 2}
    trainer = text_trainer(tiny_text, tmp_path, rows=2, think_num=3, **changes)
    passes = watch(trainer)
    trainer.train()
    assert any(isinstance(m, torch.nn.Dropout) and m.p == 0.1 for m in trainer.model.modules())
    old, reference, policy = passes[:3]
    assert old.shape[0] == 6
    assert (policy - old).exp().sub(1).abs().max() < 1e-5
    assert (policy - reference).abs().max() < 1e-5


def test_by_default_there_is_no_second_pass_that_dropout_could_change(tiny_text, tmp_path):
    """One update per generation: the old log-probs are the policy's own, whatever the adapter and its dropout."""
    module, model, _ = tiny_text
    changes = {"peft_config": lora(module, model, lora_dropout=0.5, init_lora_weights=False), "max_steps": 2}
    trainer = text_trainer(tiny_text, tmp_path, rows=2, **changes)
    trainer.train()
    assert "old_per_token_logps" not in trainer._buffered_inputs[0]
    for name in ("low_mean", "high_mean", "region_mean"):
        assert logged(trainer, f"thought/clip_ratio/{name}") == [0.0, 0.0]


def from_adapter(tiny_text, folder, adapter, **changes) -> GRPOMATrainer:
    module, model, tokenizer = tiny_text
    return GRPOMATrainer(
        model=load_adapter(copy.deepcopy(model), adapter, trainable=True),
        module=module,
        processing_class=tokenizer,
        reward_funcs=length_reward,
        args=settings(folder, beta=0.1, learning_rate=0.5, **changes),
        train_dataset=text_rows(4),
    )


def reference_log_probs(trainer) -> torch.Tensor:
    """Log-probs of one fixed sentence under the reference policy, as TRL reaches it."""
    ids = torch.tensor([trainer._tokenizer.encode("Move the gripper to the red cone.")])
    trainer.model.eval()
    trainer.model.set_adapter("ref")
    with torch.no_grad():
        logits = trainer.model(input_ids=ids).logits.log_softmax(-1)
    trainer.model.set_adapter("default")
    return logits[0, :-1].gather(1, ids[0, 1:, None])[:, 0]


def test_a_resumed_run_keeps_the_reference_it_started_from(tiny_text, tmp_path):
    """From an adapter that is not zero: the reference is its frozen copy, also after a stop, and is not the base."""
    module, model, _ = tiny_text
    torch.manual_seed(3)
    start = get_peft_model(copy.deepcopy(model), lora(module, model, init_lora_weights=False))
    start.save_pretrained(tmp_path / "start")
    settings_file = tmp_path / "start" / "adapter_config.json"
    settings_file.write_text(
        json.dumps(json.loads(settings_file.read_text()) | {"base_model_name_or_path": model.config._name_or_path})
    )

    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    whole = from_adapter(tiny_text, tmp_path / "whole", tmp_path / "start", **saving)
    before = reference_log_probs(whole)
    whole.train()
    assert logged(whole, "thought/kl")[0] < 1e-6
    assert logged(whole, "thought/kl")[1] > 1e-6, "the policy has left its reference"
    torch.testing.assert_close(reference_log_probs(whole), before, atol=0, rtol=0)

    resumed = from_adapter(tiny_text, tmp_path / "again", tmp_path / "start", **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    torch.testing.assert_close(reference_log_probs(resumed), before, atol=1e-6, rtol=0)
    assert abs(logged(resumed, "thought/kl")[-1] - logged(whole, "thought/kl")[-1]) < 1e-6

    with torch.no_grad(), resumed.model.disable_adapter():
        ids = torch.tensor([resumed._tokenizer.encode("Move the gripper to the red cone.")])
        base = resumed.model(input_ids=ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    assert (base - before).abs().max() > 1e-2
