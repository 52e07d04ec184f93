#!/usr/bin/env bash
# Runs the tests, after scripts/setup.sh if necessary.
# Usage: bash scripts/test.sh [--all] [--active] [arguments of pytest]
#   --all      the slow tests too
#   --active   use the Python environment that is active instead of .venv
set -euo pipefail

repo=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." > /dev/null && pwd)

setup=() python=$repo/.venv/bin/python pytest=()
for argument in "$@"; do
  case $argument in
    --all) pytest+=(-m '') ;;
    --active) setup+=(--active) python=${PYTHON:-python} ;;
    -h | --help) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) pytest+=("$argument") ;;
  esac
done

bash "$repo/scripts/setup.sh" "${setup[@]}"

# Offline and without telemetry; one thread per process, so that processes do not compete for cores.
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
cd "$repo"
exec "$python" -m pytest "${pytest[@]}"
