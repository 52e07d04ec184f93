#!/usr/bin/env bash
# Trains GRPO-MA on the shipped tiny model and demo scenes, and evaluates it before and after on held-out scenes.
# Usage: bash scripts/quickstart.sh [--active] [--seed N] [--output_dir DIR]
#   --active       use the Python environment that is active instead of .venv
#   --seed         seed of training and of both evaluations (default 42)
#   --output_dir   where the results go (default runs/quickstart/seedN-DATE in the checkout)
set -euo pipefail

repo=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." > /dev/null && pwd)

say() { printf 'quickstart: %s\n' "$*" >&2; }
refuse() { say "$@"; exit 2; }

setup=() python=$repo/.venv/bin/python seed=42 output=''
while (($#)); do
  case $1 in
    --active) setup=(--active) python=$(command -v -- "${PYTHON:-python}") || refuse '--active: no python on PATH' ;;
    --seed | --output_dir)
      (($# > 1)) || refuse "$1 needs a value"
      if [[ $1 == --seed ]]; then seed=$2; else output=$2; fi
      shift ;;
    -h | --help) sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) refuse "unknown argument '$1': it takes --active, --seed N and --output_dir DIR" ;;
  esac
  shift
done
[[ $seed =~ ^[0-9]{1,9}$ ]] || refuse "--seed is '$seed': give a whole number"
output=${output:-$repo/runs/quickstart/seed$seed-$(date +%Y%m%d-%H%M%S)}
mkdir -p -- "$output" 2> /dev/null || refuse "$output cannot be created: name a writable folder with --output_dir"
output=$(cd -- "$output" > /dev/null && pwd)
[[ -z $(ls -A -- "$output") ]] || refuse "$output is not empty: name a new folder with --output_dir, or leave the flag out"

bash "$repo/scripts/setup.sh" ${setup[@]+"${setup[@]}"}

# The same run everywhere: on the CPU, without settings of another training left in the environment.
unset METHOD MODEL_PATH DATASET_NAME IMAGE_ROOT OUTPUT_DIR RUN_NAME THINK_NUM ANSWER_NUM MAX_THOUGHT_LENGTH \
  MAX_ANSWER_LENGTH MAX_PROMPT_LENGTH MIN_PIXELS MAX_PIXELS LEARNING_RATE MAX_STEPS NUM_TRAIN_EPOCHS \
  PER_DEVICE_TRAIN_BATCH_SIZE GRADIENT_ACCUMULATION_STEPS SAVE_STEPS LORA_R LORA_ALPHA REPORT_TO SEED \
  CONFIG NPROC NNODES NODE_RANK MASTER_ADDR MASTER_PORT ACCELERATE_CONFIG
export CUDA_VISIBLE_DEVICES=''
export PYTHON=$python PYTHONWARNINGS=ignore::FutureWarning PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
cd "$repo"
started=$SECONDS
stage() { printf '\n== %s  [%d:%02d]\n' "$1" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }

held_out=metadata/demo/trajectory_test.yaml
evaluate() {  # folder for the results, then flags of the model
  OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} "$python" scripts/eval/eval.py --dataset "$held_out" \
    --temperature 1 --seed "$seed" --batch_size 64 --max_new_tokens 160 --output_dir "$output/$1" "${@:2}"
}

stage '1 of 7: smoke test'
"$python" scripts/smoke_test.py

stage '2 of 7: the model before training, on 128 held-out scenes, sampled at temperature 1'
evaluate before --model_name_or_path scripts/demo/tiny_model

stage '3 of 7: training (GRPO-MA, 4 thoughts x 4 answers, LoRA)'
DEEPSPEED_CONFIG=none bash scripts/run_grpo_lora.sh --nproc 2 --config config/recipes/grpo_ma_demo.yaml \
  --seed "$seed" --output_dir "$output/train"

stage '4 of 7: the model after training, on the same scenes'
evaluate after --adapter_path "$output/train"

stage '5 of 7: training curve'
"$python" scripts/eval/curve.py "$output/train"

stage '6 of 7: before (A) and after (B)'
"$python" scripts/eval/compare.py "$output/before" "$output/after"

stage '7 of 7: report in one page, with rollout trees'
"$python" scripts/report.py "$output"

stage 'done'
cat << EOF
adapter, processor and training log   $output/train
predictions and metrics, before       $output/before
predictions and metrics, after        $output/after
the page to open in a browser         $output/report.html
EOF
