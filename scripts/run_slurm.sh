#!/usr/bin/env bash
# Runs a launcher on every node of a SLURM allocation, one task per node. Submit it from the checkout's folder.
# Usage: sbatch --nodes 2 --gpus-per-node 8 scripts/run_slurm.sh [run_grpo_full.sh] [arguments of the launcher]
# The launcher's variables are passed on: DATASET_NAME=/data/my.yaml sbatch ... (see scripts/README.md)
#SBATCH --job-name=grpo-ma
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --output=grpo-ma-%j.log
set -euo pipefail

case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
launcher=run_grpo_lora.sh
case ${1:-} in run_grpo_*.sh) launcher=$1; shift ;; esac
cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}"  # sbatch runs a copy of this script from another folder
if ! [[ -f scripts/$launcher ]]; then
  echo "run_slurm: no scripts/$launcher in $PWD: submit from the checkout's folder" >&2
  exit 2
fi

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export NNODES=$SLURM_JOB_NUM_NODES MASTER_ADDR=${nodes%%$'\n'*}
export MASTER_PORT=${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 10000))}  # differs between jobs that share a node
# shellcheck disable=SC2016  # each node's own SLURM_NODEID
exec srun --kill-on-bad-exit=1 bash -c 'NODE_RANK=$SLURM_NODEID exec bash "$@"' - "scripts/$launcher" "$@"
