#!/usr/bin/env bash
# Evaluates a checkpoint (or a model) on trajectory records with scripts/eval/eval.py.
# Usage: ADAPTER_PATH=runs/mine bash scripts/eval/run_eval_trajectory.sh [flags of eval.py]
# Variables: ADAPTER_PATH, MODEL_PATH (one of the two), DATASET_NAME (default: the demo's held-out scenes), IMAGE_ROOT,
# OUTPUT_DIR (default: eval beside the adapter, or runs/eval). See scripts/README.md.
set -euo pipefail

repo=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." > /dev/null && pwd)
case ${1:-} in -h | --help) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;; esac

python=${PYTHON:-$repo/.venv/bin/python}
[[ -n ${PYTHON:-} || -x $python ]] || python=python
if ! command -v -- "$python" > /dev/null; then
  echo "run_eval_trajectory: found no Python ($python): run bash scripts/setup.sh, or set PYTHON" >&2
  exit 2
fi

flags=()
from_env() { if [[ -n ${!1:-} ]]; then flags+=("--$2" "${!1}"); fi; }
from_env MODEL_PATH model_name_or_path
from_env ADAPTER_PATH adapter_path
from_env IMAGE_ROOT image_root
flags+=(--dataset "${DATASET_NAME:-$repo/metadata/demo/trajectory_test.yaml}")
flags+=(--output_dir "${OUTPUT_DIR:-${ADAPTER_PATH:-$repo/runs}/eval}")
exec "$python" "$repo/scripts/eval/eval.py" "${flags[@]}" "$@"
