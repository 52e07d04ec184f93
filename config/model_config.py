"""Model arguments: TRL's ModelConfig with the release's LoRA setting and the picture budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import trl
from peft import LoraConfig

from task.errors import UserError
from task.task_loader import MODEL_FRAMES


@dataclass
class GRPOModelConfig(trl.ModelConfig):
    """Policy model. LoRA rank 64 and alpha 128 are the release's; only the 3B recipes set its dropout, 0.05."""

    model_name_or_path: str | None = field(
        default="Qwen/Qwen2.5-VL-3B-Instruct", metadata={"help": "Model folder or hub name."}
    )
    adapter_path: str | None = field(
        default=None,
        metadata={"help": "LoRA adapter to continue training; the KL reference is then a frozen copy of it."},
    )
    dtype: str | None = field(
        default="auto",
        metadata={
            "help": "Data type of the weights. auto: bfloat16 when training in bf16, else float32. Weights that "
            "are trained are kept in float32 in any case (under ZeRO as its own copies). Printed at start.",
            "choices": ["auto", "bfloat16", "float16", "float32"],
        },
    )
    use_peft: bool = field(default=True, metadata={"help": "LoRA (true) or full fine-tuning (false)."})
    lora_r: int = field(default=64, metadata={"help": "LoRA rank."})
    lora_alpha: int = field(default=128, metadata={"help": "LoRA alpha."})
    lora_dropout: float = field(default=0.0, metadata={"help": "LoRA dropout."})
    lora_vision: bool = field(
        default=False, metadata={"help": "Apply LoRA to the vision tower too; needs freeze_vision false."}
    )
    freeze_vision: bool = field(default=True, metadata={"help": "Keep the vision tower and its merger frozen."})
    min_pixels: int | None = field(
        default=None, metadata={"help": "Minimum pixels per picture after resizing. Default: the checkpoint's."}
    )
    max_pixels: int | None = field(
        default=None, metadata={"help": "Maximum pixels per picture after resizing. Default: the checkpoint's."}
    )

    coordinate_frame: str | None = field(
        default=None,
        metadata={
            "help": "Scale on which the model writes coordinates: processed (pixels of the processed picture) or "
            "norm1000 (0 to 1000 on both axes). Default: the family's; needed for families without a documented one.",
            "choices": list(MODEL_FRAMES),
        },
    )

    def __post_init__(self):
        super().__post_init__()
        if self.lora_vision and self.freeze_vision:
            raise UserError(
                "lora_vision=True trains the vision tower, but freeze_vision is True: set freeze_vision to false"
            )
        if self.lora_r < 1:
            raise UserError(f"lora_r={self.lora_r} must be at least 1; for full fine-tuning set use_peft to false")
        if not self.lora_alpha > 0:
            raise UserError(f"lora_alpha={self.lora_alpha} must be above 0: it scales the adapter, 0 switches it off")
        if not 0 <= self.lora_dropout < 1:
            raise UserError(f"lora_dropout={self.lora_dropout} must be at least 0 and below 1")
        if self.lora_target_parameters or self.lora_task_type != "CAUSAL_LM":
            name = "lora_target_parameters" if self.lora_target_parameters else "lora_task_type"
            raise UserError(f"{name}={getattr(self, name)!r} is not supported: leave it out")
        quantised = next((name for name in ("load_in_4bit", "load_in_8bit") if getattr(self, name)), None)
        if quantised and not self.use_peft:
            raise UserError(
                f"{quantised}=True quantises the weights that use_peft=False would train: leave use_peft true, which "
                "trains an adapter on them, or leave the quantisation out"
            )
        if self.adapter_path and not self.use_peft:
            raise UserError(
                "use_peft=False trains all weights, but adapter_path names an adapter: leave use_peft true, or merge "
                "it with scripts/merge_adapter.py and give the result as model_name_or_path"
            )
        named = self.adapter_path or self.lora_target_modules or self.lora_modules_to_save
        if self.use_peft and not self.freeze_vision and not self.lora_vision and not named:
            raise UserError(
                "freeze_vision=False has no effect while LoRA is on the language model alone: set lora_vision to true "
                "too, or use_peft to false, or leave freeze_vision out"
            )
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise UserError(f"min_pixels={self.min_pixels} is above max_pixels={self.max_pixels}")

    def resolve_dtype(self, bf16: bool) -> str:
        """The dtype the weights are loaded in, by name."""
        return ("bfloat16" if bf16 else "float32") if self.dtype in (None, "auto") else self.dtype

    def loading(self, frame: str | None, template_kwargs: str | dict | None, trust_remote_code: bool) -> dict:
        """Arguments of `model.loading.load_policy` on which everything that prompts the run's policy must agree.

        Args:
            frame: of the model's coordinates, see `model.loading.coordinate_frame_of`.
            template_kwargs: switches of the chat template, as JSON or a dict.
        """
        return {
            "attn_implementation": self.attn_implementation,
            "min_pixels": self.min_pixels,
            "max_pixels": self.max_pixels,
            "coordinate_frame": frame,
            "chat_template_kwargs": template_kwargs,
            "revision": self.model_revision,
            "trust_remote_code": trust_remote_code,
        }

    def quantization(self, dtype: str):
        """bitsandbytes settings for QLoRA (`load_in_4bit`, `load_in_8bit`) that compute in `dtype`, or None."""
        return trl.get_quantization_config(replace(self, dtype=dtype))

    def lora(self, module, model) -> LoraConfig | None:
        """The LoRA configuration on full module paths, or None for full fine-tuning.

        With `freeze_vision`, names that the vision tower has too (`q_proj`, `all-linear`) match the language model
        alone. UserError for modules_to_save that the model lacks or that are frozen.
        """
        if not self.use_peft:
            return None
        self._check_modules_to_save(module, model)
        target = self.lora_target_modules
        if isinstance(target, str) and target.isidentifier():
            target = [target]  # TRL turns a single name into a string, which peft reads as a full path
        return LoraConfig(
            r=self.lora_r,
            lora_alpha=self.lora_alpha,
            lora_dropout=self.lora_dropout,
            target_modules=target or module.lora_target_modules(model, vision=self.lora_vision),
            exclude_modules=module.vision_modules if target and self.freeze_vision else None,
            modules_to_save=self.lora_modules_to_save,
            use_rslora=self.use_rslora,
            use_dora=self.use_dora,
            task_type="CAUSAL_LM",
        )

    def _check_modules_to_save(self, module, model) -> None:
        for wanted in self.lora_modules_to_save or ():
            found = [name for name, _ in model.named_modules() if name.endswith(wanted)]  # as peft looks
            if not found:
                raise UserError(f"lora_modules_to_save={wanted}: {type(model).__name__} has no such module")
            frozen = [name for name in found if module.tower_of(f"{name}.") != "language"]
            if frozen and self.freeze_vision:
                raise UserError(
                    f"lora_modules_to_save={wanted} trains {frozen[0]}, but freeze_vision is True: set freeze_vision "
                    "to false, or leave it out"
                )
