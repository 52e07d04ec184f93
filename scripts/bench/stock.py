"""The baseline of the benchmarks: TRL's own GRPOTrainer on the same model, prompts and number of leaves."""

import trl
from bench_model import adapter_of
from datasets import Dataset, Image
from peft import PeftModel

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
ONE_STEP = {
    "max_steps": 1,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-6,
    "loss_type": "grpo",
    "beta": 0.0,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 1000,
    **SAMPLING,
}


def sum_reward(completion_ids, **kwargs):
    """A different reward for almost every completion, computed from its tokens alone."""
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def stock_trainer(model, processor, rows: list[dict], leaves: int, length: int, preset: dict, folder, **settings):
    """TRL's trainer: one prompt per step, `leaves` completions of `length` tokens; rows have `question`, `image`.

    `settings`: further ones of TRL's GRPOConfig.
    """
    data = [{"prompt": [{"role": "user", "content": row["question"]}], "image": row["image"]} for row in rows]
    args = trl.GRPOConfig(
        output_dir=str(folder),
        num_generations=leaves,
        per_device_train_batch_size=leaves,
        max_completion_length=length,
        use_cpu=preset["device"] == "cpu",
        bf16=preset["dtype"] == "bfloat16",
        gradient_checkpointing=preset.get("checkpointing", False),
        **ONE_STEP,
        **settings,
    )
    return trl.GRPOTrainer(
        model=model,
        processing_class=processor,
        reward_funcs=sum_reward,
        args=args,
        train_dataset=Dataset.from_list(data).cast_column("image", Image()),
        peft_config=None if isinstance(model, PeftModel) else adapter_of(preset, model),
    )
