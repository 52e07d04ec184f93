#!/usr/bin/env bash
# Trains all weights of the language model (no adapter) on this node's GPUs, or on its CPU, under ZeRO-3.
# Usage: [VARIABLE=value ...] bash scripts/run_grpo_full.sh [--nproc N] [--config RECIPE] [--dry-run] [flags of train.py]
# It counts processes, finds a free port and starts train.py. Every variable is in scripts/README.md.
set -euo pipefail

script=$(readlink -f "${BASH_SOURCE[0]}")
# shellcheck disable=SC2034  # launch.sh reads them
gpu_recipe=grpo_ma_qwen2_5_vl_3b_full.yaml deepspeed=zero3.json fixed=(--use_peft false)
# shellcheck source=scripts/launch.sh
source "$(dirname "$script")/launch.sh"
