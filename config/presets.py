"""The vetted setting of each method. A field left None in GRPOConfig takes its method's value from here.

`grpo` is TRL's own default with the settings GRPO-MA is compared under; `grpo_ma` follows arXiv 2509.24494 and its
release (K = M = 4, lr 1e-5, every process on the same prompt). The paper's loss is a token mean inside each sequence,
then a mean over sequences: TRL's loss_type "grpo". Its KL weight is not published: beta 0 is our choice.
`tree_grpo` follows arXiv 2509.21240 (Table 5, Eq. 8): lr 1e-6, KL 0.001, mean over tokens inside a sequence, then over
sequences. Of `tree_adv` (arXiv 2601.03703) no setting was to be found: grpo's.
"""

PRESETS = {
    "grpo": {
        "learning_rate": 1e-5,
        "loss_type": "grpo",
        "beta": 0.0,
        "sync_prompt_across_ranks": False,
    },
    "grpo_ma": {
        "learning_rate": 1e-5,
        "loss_type": "grpo",
        "beta": 0.0,
        "sync_prompt_across_ranks": True,
    },
    "tree_grpo": {
        "learning_rate": 1e-6,
        "loss_type": "grpo",
        "beta": 0.001,
        "sync_prompt_across_ranks": False,
    },
    "tree_adv": {
        "learning_rate": 1e-5,
        "loss_type": "grpo",
        "beta": 0.0,
        "sync_prompt_across_ranks": False,
    },
}
