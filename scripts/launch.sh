# Shared by run_grpo_lora.sh and run_grpo_full.sh: reads arguments and variables, counts processes, finds a port, starts
# train.py. The script that sources it sets `script` (its path, links resolved), `gpu_recipe` (recipe for GPUs),
# `deepspeed` (DeepSpeed file) and `fixed` (flags that it always passes).
# shellcheck shell=bash
# shellcheck disable=SC2154  # set by the sourcing script

[[ -n ${script:-} ]] || { echo 'launch.sh: start run_grpo_lora.sh or run_grpo_full.sh instead' >&2; exit 2; }
repo=$(cd "$(dirname "$script")/.." > /dev/null && pwd)
name=${script##*/}
name=${name%.sh}

say() { printf '%s: %s\n' "$name" "$*" >&2; }
refuse() { say "$@"; exit 2; }

# ---- own flags; everything else is passed to train.py unchanged ----
nproc_flag='' dry_run='' config=${CONFIG:-} passed=()
while (($#)); do
  case $1 in
    --dry-run) dry_run=yes ;;
    --nproc | --config)
      (($# > 1)) || refuse "$1 needs a value"
      if [[ $1 == --nproc ]]; then nproc_flag=$2; else config=$2; fi
      shift ;;
    --nproc=*) nproc_flag=${1#*=} ;;
    --config=*) config=${1#*=} ;;
    -h | --help) sed -n '2,4s/^# //p' "$script"; exit 0 ;;
    *) passed+=("$1") ;;
  esac
  shift
done
nproc_flag=${nproc_flag:-${NPROC:-}}

whole_number() {  # name, value, least
  if ! [[ $2 =~ ^(0|[1-9][0-9]{0,5})$ ]] || (($2 < $3)); then refuse "$1 is '$2': give a whole number of at least $3"; fi
}
[[ -z $nproc_flag ]] || whole_number '--nproc (or NPROC)' "$nproc_flag" 1
nnodes=${NNODES:-1} node_rank=${NODE_RANK:-0}
whole_number NNODES "$nnodes" 1
whole_number NODE_RANK "$node_rank" 0
((node_rank < nnodes)) || refuse "NODE_RANK is $node_rank, but with NNODES=$nnodes it runs from 0 to $((nnodes - 1))"

# ---- the Python: .venv if setup.sh created one, else the active environment ----
if [[ -n ${PYTHON:-} ]]; then
  python=$PYTHON
elif [[ -x $repo/.venv/bin/python ]]; then
  python=$repo/.venv/bin/python
else
  python=$(command -v python || echo python3)
fi
python=$(command -v -- "$python") || refuse "found no Python (${PYTHON:-$repo/.venv/bin/python or python}): run bash scripts/setup.sh"
PATH=$(dirname "$python"):$PATH  # DeepSpeed looks for ninja there
export PATH

# ---- GPUs: visible devices, else what torch counts ----
gpus=0
if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
  IFS=, read -r -a devices <<< "$CUDA_VISIBLE_DEVICES"
  for device in "${devices[@]}"; do
    read -r device <<< "$device"  # strips blanks
    case $device in
      '' | -1 | NoDevFiles) break ;;  # CUDA itself stops reading the list here
      GPU-* | MIG-*) ;;
      *[!0-9]*) refuse "CUDA_VISIBLE_DEVICES has the entry '$device': entries are numbers, GPU-... or MIG-... identifiers" ;;
    esac
    gpus=$((gpus + 1))
  done
  source="CUDA_VISIBLE_DEVICES='$CUDA_VISIBLE_DEVICES'"
else
  gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())') \
    || refuse "$python cannot import torch: run bash scripts/setup.sh, or activate the environment that has it"
  source="torch counts $gpus"
fi

processes=${nproc_flag:-$gpus} on_cpu=''
if ((gpus == 0)); then
  on_cpu=yes
  processes=${nproc_flag:-1}
  say "no GPU ($source): $processes process(es) on the CPU, gloo between them"
  config=${config:-$repo/config/recipes/grpo_ma_demo.yaml}
else
  say "$gpus GPU(s) visible ($source): $processes process(es)"
  ((processes <= gpus)) || say "warning: more processes than visible GPUs; --nproc is taken as given"
  config=${config:-$repo/config/recipes/$gpu_recipe}
fi
[[ -f $config || ! -f $repo/$config ]] || config=$repo/$config  # shipped recipes work from any folder
[[ -f $config ]] || refuse "the recipe '$config' is not a file: give --config (or CONFIG) one of $repo/config/recipes/*.yaml"

# ---- defaults of the Qwen2.5-VL-3B recipes: local weights, the published trajectory records ----
recipe_output=output of_3b='' model_named=${MODEL_PATH:-} records_named=${DATASET_NAME:-} pictures_named=${IMAGE_ROOT:-}
folder_named=${OUTPUT_DIR:-${RUN_NAME:-}}
while IFS= read -r line || [[ -n $line ]]; do
  case $line in
    model_name_or_path:*Qwen/Qwen2.5-VL-3B-Instruct*) of_3b=yes ;;
    dataset_name:*) records_named=yes ;;
    output_dir:*) read -r recipe_output _ <<< "${line#output_dir:}" ;;
  esac
done < "$config"
for word in ${passed[@]+"${passed[@]}"}; do
  case $word in
    --model_name_or_path | --model_name_or_path=*) model_named=yes ;;
    --dataset_name | --dataset_name=*) records_named=yes ;;
    --image_root | --image_root=*) pictures_named=yes ;;
    --output_dir | --output_dir=* | --resume | --resume=* | --resume_from_checkpoint | --resume_from_checkpoint=*) folder_named=yes ;;
  esac
done
lies_here() { [[ -e $1 || -e $repo/$1 ]]; }  # the same two places as train.py
defaults=()
if [[ -n $of_3b && -z $model_named ]] && lies_here pretrained_weights/Qwen2.5-VL-3B-Instruct/config.json; then
  defaults+=(--model_name_or_path pretrained_weights/Qwen2.5-VL-3B-Instruct)
fi
if [[ -n $of_3b && -z $records_named ]]; then
  if lies_here data/ShareRobot/trajectory/images; then pictures_named=yes; fi
  if [[ -z $pictures_named ]] || ! lies_here metadata/grpo_sharerobot_trajectory_train.json; then
    refuse "no training records: set DATASET_NAME, or fetch the published ones with these two commands, in $repo:
  hf download whcpumpkin/GRPO-MA-data grpo_sharerobot_trajectory_train.json grpo_sharerobot_trajectory_test.json --repo-type dataset --local-dir metadata
  hf download BAAI/ShareRobot --include 'trajectory/*' --repo-type dataset --local-dir data/ShareRobot"
  fi
  defaults+=(--dataset_name "$repo/scripts/train/grpo_trajectory.yaml")
fi
((${#defaults[@]} == 0)) || say "defaults used: ${defaults[*]}"

# ---- rendezvous: MASTER_PORT, or else a free port ----
port_is_free() {
  "$python" -c 'import socket, sys
probe = socket.socket()
probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    probe.bind(("", int(sys.argv[1])))
except OSError:
    sys.exit(1)' "$1"
}
if ((nnodes > 1)); then
  [[ -n ${MASTER_ADDR:-} ]] || refuse "NNODES is $nnodes: set MASTER_ADDR to the address of node 0 on every node"
  address=$MASTER_ADDR port=${MASTER_PORT:-29500}  # must be the same on every node
else
  address=127.0.0.1  # ignores a MASTER_ADDR left by an earlier job
  port=${MASTER_PORT:-$("$python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')}
fi
whole_number MASTER_PORT "$port" 1
((port < 65536)) || refuse "MASTER_PORT is '$port': ports end at 65535"
if ((node_rank == 0)) && ! port_is_free "$port"; then
  refuse "port $port is in use: end the other job or set MASTER_PORT to a free port (with one node, leave it unset)"
fi

# ---- flags of train.py from the environment: only what is set ----
flags=("${fixed[@]}" "${defaults[@]}")
from_env() { if [[ -n ${!1:-} ]]; then flags+=("--$2" "${!1}"); fi; }
from_env METHOD method
from_env MODEL_PATH model_name_or_path
from_env DATASET_NAME dataset_name
from_env IMAGE_ROOT image_root
output_dir=${OUTPUT_DIR:-${RUN_NAME:+output/$RUN_NAME}}
if [[ -z $folder_named ]] && ((nnodes == 1)); then  # the clocks of several nodes differ; a resumed run needs its folder
  recipe_output=${recipe_output#[\"\']}
  output_dir=${recipe_output%[\"\']}-$(date +%Y%m%d-%H%M%S)
  say "results go to $output_dir (OUTPUT_DIR or --output_dir names another folder)"
fi
[[ -z $output_dir ]] || flags+=(--output_dir "$output_dir")
from_env RUN_NAME run_name
from_env THINK_NUM think_num
from_env ANSWER_NUM answer_num
from_env MAX_THOUGHT_LENGTH max_thought_length
from_env MAX_ANSWER_LENGTH max_answer_length
from_env MAX_PROMPT_LENGTH max_prompt_length
from_env MIN_PIXELS min_pixels
from_env MAX_PIXELS max_pixels
from_env LEARNING_RATE learning_rate
from_env MAX_STEPS max_steps
from_env NUM_TRAIN_EPOCHS num_train_epochs
from_env PER_DEVICE_TRAIN_BATCH_SIZE per_device_train_batch_size
from_env GRADIENT_ACCUMULATION_STEPS gradient_accumulation_steps
from_env SAVE_STEPS save_steps
from_env LORA_R lora_r
from_env LORA_ALPHA lora_alpha
from_env REPORT_TO report_to
from_env SEED seed
[[ -z $on_cpu ]] || flags+=(--use_cpu true)

# ---- OpenMP threads: divide the cores among the processes, which would otherwise slow each other down ----
if [[ -z ${OMP_NUM_THREADS:-} ]]; then
  cores=$(nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
  OMP_NUM_THREADS=$((cores > processes ? cores / processes : 1))
fi
RAYON_NUM_THREADS=${RAYON_NUM_THREADS:-$OMP_NUM_THREADS}  # the tokenizer's threads
export OMP_NUM_THREADS RAYON_NUM_THREADS

# ---- trees differ in size from step to step: segments that grow keep the GPU's memory from fragmenting ----
environment=(OMP_NUM_THREADS RAYON_NUM_THREADS)
if [[ -z $on_cpu ]]; then
  if [[ -z ${PYTORCH_ALLOC_CONF:-}${PYTORCH_CUDA_ALLOC_CONF:-} ]]; then
    export PYTORCH_ALLOC_CONF=expandable_segments:True
    environment+=(PYTORCH_ALLOC_CONF)
  fi
fi

# ---- how the processes work together: DeepSpeed, plain data parallelism, or a configuration of accelerate ----
deepspeed=${DEEPSPEED_CONFIG:-$repo/scripts/$deepspeed}
start=("$python" "$repo/scripts/start_processes.py")
# Never `accelerate launch --cpu`: with --num_processes 2 it silently starts one process without DeepSpeed. Always pass
# --config_file: otherwise the file of an earlier `accelerate config` is used, whose gpu_ids replace CUDA_VISIBLE_DEVICES.
launch=("${start[@]}" accelerate.commands.launch --num_processes "$((processes * nnodes))" --num_machines "$nnodes"
  --machine_rank "$node_rank" --main_process_port "$port" --mixed_precision no --dynamo_backend no)
((nnodes == 1)) || launch+=(--main_process_ip "$address" --same_network)
if [[ -n ${ACCELERATE_CONFIG:-} ]]; then
  [[ -f $ACCELERATE_CONFIG ]] || refuse "ACCELERATE_CONFIG '$ACCELERATE_CONFIG' is not a file: use $repo/scripts/ddp.yaml, or leave it out"
  launch+=(--config_file "$ACCELERATE_CONFIG")
elif [[ $deepspeed == none ]]; then
  launch=("${start[@]}" torch.distributed.run --nproc_per_node "$processes" --nnodes "$nnodes" --node_rank "$node_rank"
    --master_addr "$address" --master_port "$port")
else
  [[ -f $deepspeed ]] || refuse "DEEPSPEED_CONFIG '$deepspeed' is not a file: use scripts/zero2.json, scripts/zero3.json or none"
  launch+=(--config_file "$repo/scripts/ddp.yaml" --use_deepspeed --deepspeed_config_file "$deepspeed")
  ((nnodes == 1)) || launch+=(--deepspeed_multinode_launcher standard)
fi
command=("${launch[@]}" "$repo/train.py" --config "$config" "${flags[@]}" "${passed[@]}")

if [[ -n $dry_run ]]; then
  for name in "${environment[@]}"; do printf '%s=%q ' "$name" "${!name}"; done
  printf '%q' "${command[0]}"
  command=("${command[@]:1}")
  printf ' %q' "${command[@]}"
  printf '\n'
  exit 0
fi

# SIGTERM is sent to the training processes directly, which save and exit with status 0; torch's launcher would forward it,
# kill them 30 s later and exit with a traceback.
# shellcheck disable=SC2317  # the trap calls them
# shellcheck disable=SC2329  # the trap calls them
children() { ps -A -o pid= -o ppid= | while read -r pid parent; do if ((parent == $1)); then echo "$pid"; fi; done; }
# shellcheck disable=SC2317
# shellcheck disable=SC2329
relay() { signalled=yes; for pid in $(children "$launcher"); do kill -TERM "$pid" || true; done; }
"${command[@]}" &
launcher=$!
trap relay TERM
trap 'signalled=yes; kill -INT "$launcher"' INT
status=0 signalled=yes
while [[ -n $signalled ]]; do  # a signal interrupts `wait`, not the launcher
  signalled='' ended=0
  wait "$launcher" || ended=$?
  ((ended == 127)) || status=$ended
done
exit "$status"
