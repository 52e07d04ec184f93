"""The peak of a process, and the settings with which a model fits on a card."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memory import terms
from memory.sizes import ModelSizes
from memory.terms import Trees, Tuning

GB = 10**9
CONTEXT = 1.5 * GB  # CUDA context, cuBLAS and NCCL buffers: an assumption, not measured
MARGIN = 0.9  # of a card that the estimate may fill; the rest is for fragmentation
CARDS = 24, 48, 80, 141
PROMPTS = 8, 4, 2, 1


@dataclass(frozen=True)
class Settings:
    """The settings that trade memory for time.

    Args:
        checkpointing: recompute each layer in the backward pass.
        max_slots: of a packed forward pass; None: a micro-batch is one pass.
        prompts: grown together (`rollout_prompts`).
        trees: per micro-batch.
    """

    checkpointing: bool
    max_slots: int | None
    prompts: int
    trees: int = 1


def breakdown(sizes: ModelSizes, tuning: Tuning, trees: Trees, settings: Settings) -> dict[str, dict[str, float]]:
    """Phase -> term -> bytes, of a process that trains with these settings."""
    slots = min(trees.slots * settings.trees, settings.max_slots or trees.slots * settings.trees)
    always = {
        "weights": terms.weights(sizes, tuning),
        "adapter, gradients, optimiser": terms.optimiser(sizes, tuning),
        "context (assumed)": CONTEXT,
    }
    rollout = {
        "gathered weights": terms.gathered(sizes, tuning, sampling=True),
        "keys and values": terms.kv_cache(sizes, trees.stages(settings.prompts), tuning.bytes_per_weight),
        "prefill or sampler": terms.sampling(sizes, trees, settings.prompts),
    }
    training = {
        "gathered weights": terms.gathered(sizes, tuning, sampling=False),
        "activations": terms.activations(sizes, tuning, slots, settings.checkpointing),
        "head": terms.head(sizes, tuning, slots),
        "vision tower": 4 * trees.visual * sizes.vision_features * settings.trees,
    }
    return {"rollout": always | rollout, "training": always | training}


def peak(sizes: ModelSizes, tuning: Tuning, trees: Trees, settings: Settings) -> float:
    """Bytes of the phase that needs more."""
    return max(sum(phase.values()) for phase in breakdown(sizes, tuning, trees, settings).values())


def candidates(trees: Trees) -> list[Settings]:
    """From the fastest settings to those that need the least memory.

    First fewer prompts are grown together, down to two, then layers are checkpointed, then rows cut; one at a time
    comes last, since a decoding step costs about as much for one prompt as for eight.
    """
    found = [Settings(False, None, prompts) for prompts in PROMPTS[:-1]]
    found += [Settings(True, None, prompts) for prompts in PROMPTS[:-1]]
    cuts = [size for size in (4096, 3072, 2048, 1536, 1024) if trees.path <= size < trees.slots]
    found += [Settings(True, size, prompts) for size in cuts for prompts in PROMPTS[:-1]]
    return found + [replace(settings, prompts=1) for settings in found if settings.prompts == 2]


def fitting(sizes: ModelSizes, tuning: Tuning, trees: Trees, card: float) -> Settings | None:
    """The first candidate that leaves the margin free on a card of so many GB; None if there is none."""
    for settings in candidates(trees):
        if peak(sizes, tuning, trees, settings) <= MARGIN * card * GB:
            return settings
    return None


def table(models: dict[str, ModelSizes], tunings: list[Tuning], trees: Trees) -> list[str]:
    """Lines of a Markdown table: one per model, tuning and card."""
    lines = [
        "| model | trained | card | checkpointing | `max_slots` | `rollout_prompts` | rollout | training |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, sizes in models.items():
        for tuning in tunings:
            for card in CARDS:
                settings = fitting(sizes, tuning, trees, card)
                start = f"| {name} | {tuning.mode} | {card} GB |"
                if settings is None:
                    least = min(peak(sizes, tuning, trees, each) for each in candidates(trees))
                    lines.append(f"{start} does not fit: at least {least / GB:.0f} GB | | | | |")
                    continue
                phases = breakdown(sizes, tuning, trees, settings)
                rollout, training = (f"{sum(phases[phase].values()) / GB:.0f} GB" for phase in ("rollout", "training"))
                checkpointing = "on" if settings.checkpointing else "off"
                cells = [checkpointing, settings.max_slots or "-", settings.prompts, rollout, training]
                lines.append(f"{start} {' | '.join(map(str, cells))} |")
    return lines
