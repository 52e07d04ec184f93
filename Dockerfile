# syntax=docker/dockerfile:1
# GRPO-MA on NVIDIA GPUs. Build and train on the demo data, with outputs on the host:
#   docker build -t grpo-ma .
#   docker run --gpus all --ipc host -v "$PWD/runs:/grpo-ma/runs" grpo-ma bash scripts/run_grpo_lora.sh
# The CUDA version is that of the torch wheels; the devel image has the compiler that DeepSpeed's ops need.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        build-essential git ninja-build python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /grpo-ma
# The requirements alone first, so that a change of the code does not install torch again.
COPY LICENSE NOTICE README.md pyproject.toml requirements.txt setup.py ./
COPY scripts/setup.sh scripts/
COPY config/ config/
ARG EXTRAS=math,search
RUN --mount=type=cache,target=/root/.cache/pip bash scripts/setup.sh --extras "$EXTRAS"
COPY config/ config/
COPY dataset/ dataset/
COPY docs/ docs/
COPY metadata/ metadata/
COPY model/ model/
COPY scripts/ scripts/
COPY task/ task/
COPY tests/ tests/
COPY trainer/ trainer/
COPY Makefile train.py ./
RUN .venv/bin/python -m pip install --no-deps --no-input --editable .
ENV PATH=/grpo-ma/.venv/bin:$PATH PYTHONUNBUFFERED=1
CMD ["bash", "scripts/run_grpo_lora.sh", "--help"]
