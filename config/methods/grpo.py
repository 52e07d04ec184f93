"""Settings of plain GRPO: G independent completions per prompt."""

from __future__ import annotations

from config.chains import PRESET, SIZE, check_chains
from config.method_settings import MethodSettings

SETTINGS = MethodSettings(about="G chains", preset=PRESET, size=lambda args: SIZE, check=check_chains)
