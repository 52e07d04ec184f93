"""vLLM as the second engine of rollout trees."""

INSTALL = "install it with bash scripts/setup.sh --extras vllm, and start the run with .venv-vllm/bin/python"
