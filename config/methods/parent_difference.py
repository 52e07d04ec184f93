"""Settings of parent_difference: trees of segments of fixed length, each credited with its value minus its parent's.

The form shared by SPO-tree (arXiv 2505.23564), TreeRPO and VinePPO. A segment counts once in the loss, and no standard
deviation divides. The 30 tokens of a segment are SPO's; its 6 x 6 x 6 tree is larger than the default here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from config.method_settings import MethodSettings, RolloutSize
from task.errors import UserError

LEAVES, LENGTH = 16, 512


@dataclass
class ParentDifferenceFields:
    """Fields of `method parent_difference`."""

    first_segments: int = field(default=4, metadata={"help": "Segments that start at the prompt (parent_difference)."})
    segment_branches: int = field(
        default=2,
        metadata={
            "help": "Segments that follow one of segment_length tokens, until a prompt has num_generations leaves "
            "(parent_difference)."
        },
    )
    segment_length: int = field(
        default=30,
        metadata={"help": "Tokens of a segment that branches; a leaf runs to the end (parent_difference)."},
    )


def check_parent_difference(args) -> None:
    leaves = LEAVES if args.num_generations is None else args.num_generations
    if leaves < 2:
        raise UserError(f"num_generations={leaves}: an advantage compares at least 2 leaves of a prompt; set 2 or more")
    if args.first_segments > leaves:
        raise UserError(
            f"first_segments={args.first_segments} do not fit into num_generations={leaves} leaves per prompt: lower "
            "first_segments, so that branches can add the others, or raise num_generations"
        )
    if args.sync_prompt_across_ranks:
        raise UserError(
            "sync_prompt_across_ranks=True: parent_difference compares the first segments of a prompt, which one "
            "process must hold; set it to false"
        )


SETTINGS = MethodSettings(
    about="segments of fixed length against their parents",
    preset={
        "learning_rate": 1e-5,
        "loss_type": "grpo",
        "beta": 0.0,
        "sync_prompt_across_ranks": False,
        "scale_rewards": "none",
        "shared_token_weight": "once",
    },
    size=lambda args: RolloutSize(default={"num_generations": LEAVES, "max_completion_length": LENGTH}),
    check=check_parent_difference,
    fields=ParentDifferenceFields,
    at_least={"first_segments": 1, "segment_branches": 2, "segment_length": 1},
    shown=tuple(ParentDifferenceFields.__dataclass_fields__),
)
