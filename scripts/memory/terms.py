"""Bytes per process, term by term. Every term is a function of sizes alone, so a CPU can check it."""

from __future__ import annotations

from dataclasses import dataclass

from memory.sizes import ModelSizes
from trainer.engines.kv_cache import room_for

BFLOAT16, FLOAT32, NF4 = 2, 4, 0.5 + 4 / 64  # bitsandbytes keeps one float32 scale per 64 weights
HEAD_TILE = 4096 * 32768  # tokens x vocabulary of a tile of TRL's fused LM head
LIVE_PARAMETERS = 10**9  # DeepSpeed's stage3_max_live_parameters
SAMPLER_BYTES = 26  # per row and vocabulary entry: bfloat16 logits and six float32 tensors of the sampler


@dataclass(frozen=True)
class Tuning:
    """What is trained, and how its states are spread.

    Args:
        mode: lora, qlora or full.
        rank, dropout: of LoRA.
        zero: the DeepSpeed ZeRO stage, 0 for none.
        processes: that the states are spread over.
        bytes_per_weight: of the model's unquantised weights.
    """

    mode: str
    rank: int = 64
    dropout: float = 0.05
    zero: int = 0
    processes: int = 1
    bytes_per_weight: int = BFLOAT16


@dataclass(frozen=True)
class Trees:
    """The largest rollout of one prompt that the limits allow.

    Args:
        prompt: tokens of the prompt, visual tokens included.
        visual: visual tokens of the prompt.
        trunk, branches: continuations of the prompt, and continuations of each of these.
        trunk_length, branch_length: their token limits.
    """

    prompt: int
    visual: int
    trunk: int
    branches: int
    trunk_length: int
    branch_length: int

    @property
    def leaves(self) -> int:
        return self.trunk * self.branches

    @property
    def path(self) -> int:
        """Slots of one row."""
        return self.prompt - 1 + self.trunk_length + self.branch_length

    @property
    def slots(self) -> int:
        """Slots of the packed tree: its last prompt token begins each completion, so the prompt has one slot less."""
        return self.prompt - 1 + self.trunk * (self.trunk_length + self.branches * self.branch_length)

    def stages(self, prompts: int, together: bool = False) -> list[tuple[int, int]]:
        """(live rows, slots) whenever the cache may grow, for so many prompts.

        Args:
            together: all first continuations end in the same step; else one after the other.
        """
        rows, length = prompts * self.trunk, self.prompt + self.trunk_length
        stages = [(prompts, self.prompt), (rows, self.prompt), (rows, length)]
        if self.branch_length:
            after = rows * self.branches
            steps = [after] if together else range(rows + self.branches - 1, after + 1, self.branches - 1 or 1)
            stages += [(count, length) for count in steps]
            stages.append((after, length + self.branch_length))
        return stages


def weights(sizes: ModelSizes, tuning: Tuning) -> float:
    """The base model, or this process's shard of it."""
    if tuning.mode == "qlora":
        rest = sizes.parameters - sizes.quantisable
        return NF4 * sizes.quantisable + tuning.bytes_per_weight * rest
    whole = tuning.bytes_per_weight * sizes.parameters
    if tuning.mode == "full" and not tuning.zero:  # ZeRO's float32 copies count among the optimiser's states
        whole += (FLOAT32 - tuning.bytes_per_weight) * sizes.trained_in_full
    return whole if tuning.zero < 3 else whole / tuning.processes


def gathered(sizes: ModelSizes, tuning: Tuning, sampling: bool) -> float:
    """Weights that ZeRO-3 gathers in addition to the shard: all while rollouts are sampled, else the layers in use."""
    if tuning.zero < 3:
        return 0.0
    return float(tuning.bytes_per_weight * (sizes.parameters if sampling else min(sizes.parameters, LIVE_PARAMETERS)))


def trained(sizes: ModelSizes, tuning: Tuning) -> int:
    """Number of trained parameters."""
    if tuning.mode == "full":
        return sizes.trained_in_full
    return tuning.rank * sum(linear.inputs + linear.outputs for linear in sizes.targets)


def optimiser(sizes: ModelSizes, tuning: Tuning) -> float:
    """Adapter weights, gradients, and AdamW's states (with DeepSpeed also its float32 copy of the weights)."""
    count = trained(sizes, tuning)
    own_weights = 0 if tuning.mode == "full" else count
    if tuning.zero:
        spread = 12 / tuning.processes  # the float32 weight and AdamW's two moments
        gradients = 2 / tuning.processes if tuning.zero == 3 else 2
        return count * (spread + gradients) + 2 * own_weights
    return FLOAT32 * (own_weights + 3 * count)  # what is trained is kept in float32


def layer_features(sizes: ModelSizes, tuning: Tuning, mask_bytes: int = 1) -> float:
    """Bytes that one decoder layer saves per slot for its backward pass, in bfloat16.

    Args:
        mask_bytes: of dropout's mask per element: 1 on a GPU, 4 on a CPU.
    """
    hidden, inner = sizes.hidden, sizes.intermediate
    queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    norms = 2 * (FLOAT32 * hidden + FLOAT32)
    attention = BFLOAT16 * 2 * (queries + keys) + FLOAT32 * sizes.heads
    if tuning.mode == "full":  # the inputs of weights that have gradients are saved as well
        return norms + 2 * BFLOAT16 * 2 * hidden + attention + BFLOAT16 * 4 * inner
    per_layer = [linear.inputs for linear in sizes.targets][: max(len(sizes.targets) // sizes.layers, 1)]
    adapters = (BFLOAT16 + (mask_bytes if tuning.dropout else 0)) * sum(per_layer)
    return norms + attention + BFLOAT16 * 3 * inner + adapters + BFLOAT16 * tuning.rank * len(per_layer)


def activations(sizes: ModelSizes, tuning: Tuning, slots: int, checkpointing: bool, mask_bytes: int = 1) -> float:
    """What a forward pass over so many slots saves, and the layer that the backward pass works on."""
    layer = layer_features(sizes, tuning, mask_bytes) * slots
    copies = 0 if tuning.mode == "full" or tuning.zero else BFLOAT16 * trained(sizes, tuning)  # autocast's, of adapters
    if checkpointing:
        return BFLOAT16 * sizes.hidden * sizes.layers * slots + 2 * layer + copies / sizes.layers
    return layer * (sizes.layers + 1) + copies


def head(sizes: ModelSizes, tuning: Tuning, slots: int) -> float:
    """The last norm, the fused LM head's tile and gradients, and weights that are dequantised for a product."""
    weight_gradient = FLOAT32 * sizes.vocab * sizes.hidden if tuning.mode == "full" else 0
    dequantised = BFLOAT16 * sizes.largest_linear if tuning.mode == "qlora" else 0
    return 10 * sizes.hidden * slots + BFLOAT16 * HEAD_TILE + weight_gradient + dequantised


def kv_cache(sizes: ModelSizes, stages: list[tuple[int, int]], element: int = BFLOAT16) -> int:
    """The live rows' keys and values, with the spare rows and slots of their buffers."""
    room = room_for((stages[0][0], 0), *stages[0])
    for rows, length in stages[1:]:
        room = room_for(room, rows, room[1])
        while room[1] < length:  # a step adds one slot
            room = room_for(room, rows, room[1] + 1)
    per_token = 2 * sizes.layers * sizes.kv_heads * sizes.head_size * element
    return room[0] * room[1] * per_token


def sampling(sizes: ModelSizes, trees: Trees, prompts: int) -> float:
    """The larger of the prefill of all prompts (one layer and the tower) and the sampler on all rows."""
    layer = BFLOAT16 * (6 * sizes.hidden + 3 * sizes.intermediate) * trees.prompt * prompts
    tower = 4 * trees.visual * prompts * sizes.vision_features  # four patches per visual token
    return max(layer, tower, SAMPLER_BYTES * sizes.vocab * trees.leaves * prompts)
