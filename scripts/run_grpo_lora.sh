#!/usr/bin/env bash
# Trains a LoRA adapter on this node's GPUs, or on its CPU, under DeepSpeed ZeRO-2.
# Usage: [VARIABLE=value ...] bash scripts/run_grpo_lora.sh [--nproc N] [--config RECIPE] [--dry-run] [flags of train.py]
# It counts processes, finds a free port and starts train.py. Every variable is in scripts/README.md.
set -euo pipefail

script=$(readlink -f "${BASH_SOURCE[0]}")
# shellcheck disable=SC2034  # launch.sh reads them
gpu_recipe=grpo_ma_qwen2_5_vl_3b.yaml deepspeed=zero2.json fixed=()
# shellcheck source=scripts/launch.sh
source "$(dirname "$script")/launch.sh"
