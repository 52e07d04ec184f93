#!/usr/bin/env bash
# Evaluates a checkpoint (or a model) on trajectory records with scripts/eval/eval.py.
# Usage: ADAPTER_PATH=runs/mine bash scripts/eval/run_eval_trajectory.sh [flags of eval.py]
# Variables: ADAPTER_PATH, MODEL_PATH (one of the two), DATASET_NAME (default: the published test records if present,
# else the demo's held-out scenes), IMAGE_ROOT, OUTPUT_DIR (default: eval next to the adapter, or runs/eval).
# See scripts/README.md.
set -euo pipefail

repo=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." > /dev/null && pwd)
case ${1:-} in -h | --help) sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;; esac

python=${PYTHON:-$repo/.venv/bin/python}
[[ -n ${PYTHON:-} || -x $python ]] || python=python
if ! command -v -- "$python" > /dev/null; then
  echo "run_eval_trajectory: found no Python ($python): run bash scripts/setup.sh, or set PYTHON" >&2
  exit 2
fi

# ---- test records: the published ones, except for the demo's model ----
of_demo='' published=metadata/grpo_sharerobot_trajectory_test.json
if [[ ${MODEL_PATH:-} == *tiny_model* ]]; then of_demo=yes; fi
for settings in "${ADAPTER_PATH:-}"/adapter_config.json "${ADAPTER_PATH:-}"/checkpoint-*/adapter_config.json; do
  if [[ -f $settings && $(< "$settings") == *tiny_model* ]]; then of_demo=yes; fi
done
dataset=${DATASET_NAME:-} image_root=${IMAGE_ROOT:-}
if [[ -z $dataset && -z $of_demo ]]; then
  for folder in "$PWD" "$repo"; do
    [[ -f $folder/$published ]] || continue
    dataset=$folder/$published image_root=${image_root:-$folder/data/ShareRobot/trajectory/images}
    break
  done
fi
dataset=${dataset:-$repo/metadata/demo/trajectory_test.yaml}
case " $* " in *' --dataset '*) ;; *) echo "run_eval_trajectory: test file $dataset" >&2 ;; esac

flags=()
from_env() { if [[ -n ${!1:-} ]]; then flags+=("--$2" "${!1}"); fi; }
from_env MODEL_PATH model_name_or_path
from_env ADAPTER_PATH adapter_path
[[ -z $image_root ]] || flags+=(--image_root "$image_root")
flags+=(--dataset "$dataset")
flags+=(--output_dir "${OUTPUT_DIR:-${ADAPTER_PATH:-$repo/runs}/eval}")
exec "$python" "$repo/scripts/eval/eval.py" "${flags[@]}" "$@"
