"""Small tokenizers and chat templates of the model families, on the byte-level BPE of the shipped tiny model."""

import functools
import json

from paths import ROOT
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

# Each template writes what the one of the named checkpoint writes for user turns of text, pictures and videos.
PARTS = """\
{%- for part in turn['content'] -%}
{%- if part['type'] == 'image' -%}{{ '@image' }}
{%- elif part['type'] == 'video' -%}{{ '@video' }}
{%- else -%}{{ part['text'] }}{%- endif -%}
{%- endfor -%}"""
TURNS = """\
{{ '@start' }}{%- for turn in messages -%}{{ @before }}@parts{{ '@end' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '@header' }}{%- endif -%}"""


def template(before: str, end: str, header: str, start="", image="", video="", parts=PARTS) -> str:
    """A chat template: `before` is an expression, all other arguments are the texts that it writes."""
    named = {"start": start, "before": before, "parts": parts, "end": end, "header": header}
    written = TURNS
    for name, text in (named | {"image": image, "video": video}).items():
        written = written.replace(f"@{name}", text)
    return written


def chatml(image: str, video: str = "", start: str = "", parts: str = PARTS) -> str:
    before = r"'<|im_start|>' + turn['role'] + '\n'"
    return template(before, r"<|im_end|>\n", r"<|im_start|>assistant\n", start, image, video, parts)


@functools.cache
def _vocabulary() -> dict:
    return json.loads((ROOT / "scripts" / "demo" / "tiny_model" / "tokenizer.json").read_text(encoding="utf-8"))


def tokenizer(special: list[str], eos: str, pad: str, bos: str | None = None, writes_bos=False, **named):
    """A tokenizer with these special tokens behind the shipped vocabulary.

    `named`: tokens that a processor finds as attributes of its tokenizer. `writes_bos`: it begins every text with
    `bos`, unless it is told not to add special tokens.
    """
    parts = json.loads(json.dumps(_vocabulary())) | {"added_tokens": [], "post_processor": None}
    backend = Tokenizer.from_str(json.dumps(parts))
    backend.add_special_tokens(list(dict.fromkeys([*special, eos, pad, *([bos] if bos else []), *named.values()])))
    if writes_bos:
        from tokenizers.processors import TemplateProcessing

        ids = [(bos, backend.token_to_id(bos))]
        backend.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=eos, pad_token=pad, bos_token=bos, extra_special_tokens=named or None
    )
