"""The arguments of train.py. Their modules load torch and TRL, so the names are imported when they are asked for."""

import task.command.packages  # noqa: F401
from config.lazy import lazy_names

MODULES = {
    "GRPOConfig": "config.grpo_config",
    "GRPOModelConfig": "config.model_config",
    "GRPOScriptArguments": "config.script_arguments",
}
__all__ = list(MODULES)
__getattr__ = lazy_names(MODULES)
