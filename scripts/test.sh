#!/usr/bin/env bash
# Runs the tests, after scripts/setup.sh if necessary.
# Usage: bash scripts/test.sh [--all] [--active | --vllm] [arguments of pytest]
#   --all      the slow tests too
#   --vllm     the tests of engines, agents and evaluation on vLLM, in .venv-vllm
#   --active   use the Python environment that is active instead of .venv
set -euo pipefail

repo=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." > /dev/null && pwd)

engines=("$repo"/tests/trainer/engines/test_{engine,engine_trees,served_training,vllm_*}.py)
engines+=("$repo"/tests/trainer/evaluation/test_agent_evaluation.py "$repo"/tests/scripts/bench/test_whole_step_on_vllm.py)
setup=() python=$repo/.venv/bin/python pytest=()
for argument in "$@"; do
  case $argument in
    --all) pytest+=(-m '') ;;
    --active) setup+=(--active) python=${PYTHON:-python} ;;
    --vllm) setup+=(--extras "vllm,dev") python=$repo/.venv-vllm/bin/python pytest+=(--engine vllm "${engines[@]}") ;;
    -h | --help) sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) pytest+=("$argument") ;;
  esac
done

bash "$repo/scripts/setup.sh" "${setup[@]}"

# Offline and without telemetry; one thread per process, so that processes do not compete for cores.
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
cd "$repo"
exec "$python" -m pytest "${pytest[@]}"
