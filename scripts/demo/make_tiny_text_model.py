"""Builds the text model of the search demo: a Qwen2 (transformers' class) with 0.7 million parameters, its tokenizer.

    python scripts/demo/make_tiny_text_model.py --out /some/folder   # random weights; learn_to_search.py trains them

The byte-level BPE is trained on the demo's own sentences, so that an invented name is two tokens and a word is one.
The agent's tags are tokens of their own, as <think> is in Qwen3.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from scripts.demo.make_facts import FIRST, RELATIONS, SECOND
from scripts.demo.make_tiny_model import GENERAL_ENGLISH
from task.search_qa import TASK_CONFIG

VOCAB_SIZE = 768
WIDTH, HEAD, THETA = 128, 32, 10000.0
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # Qwen2's
TAGS = ["think", "search", "information", "answer", "tool_call", "tool_response"]
TAG_TOKENS = [token for tag in TAGS for token in (f"<{tag}>", f"</{tag}>")]
CHAT_TEMPLATE = (  # Qwen2's form and its default system turn
    "{%- if messages[0]['role'] != 'system' -%}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
    "{%- endif -%}"
    "{%- for turn in messages -%}"
    "{{ '<|im_start|>' + turn['role'] + '\\n' + turn['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def sentences() -> list[str]:
    """Texts that the tokenizer should encode in few tokens. Syllables are separate, so a name is always two tokens."""
    relations = sorted({relation for of_kind in RELATIONS.values() for relation in of_kind})
    texts = [f" {first}" for first in FIRST] * 30 + [second for second in SECOND] * 30
    for relation in relations:
        texts += [f"What is the {relation} of", f" {relation}", f" I need the {relation} of", f" The {relation} of"] * 3
    texts += ["Who is", " is", ".\n", ")", "Doc 1(Title:", ">\n\n", " That answers it."] * 40
    texts += [TASK_CONFIG["grpo_template"].format(Question=""), "You are a helpful assistant."] * 20
    return texts + ["system\n", "user\n", "assistant\n"] * 20 + GENERAL_ENGLISH.strip().splitlines()


def build_tokenizer():
    """A Qwen2Tokenizer with Qwen's split pattern and VOCAB_SIZE ids."""
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    bpe.train_from_iterator(
        sentences(),
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS) - len(TAG_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    trained = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=trained["vocab"],
        merges=[tuple(merge) for merge in trained["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=SPECIAL_TOKENS,
        model_max_length=4096,
    )
    tokenizer.add_tokens(TAG_TOKENS)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer, seed=0):
    """The model with random weights (float32), and Qwen2.5's own sampling defaults.

    Two things are not random, because they cut the training until names are copied from several minutes to one: the
    blocks' contributions to the residual stream start at zero, and heads of the first block start by attending one and
    two tokens back.
    """
    torch.manual_seed(seed)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=WIDTH // HEAD,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        initializer_range=WIDTH**-0.5,
        tie_word_embeddings=True,
        bos_token_id=pad,
        eos_token_id=end,
        pad_token_id=pad,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
        _look_back(model.model.layers[0].self_attn)
    model.generation_config = GenerationConfig(
        bos_token_id=pad,
        pad_token_id=pad,
        eos_token_id=[end, pad],
        do_sample=True,
        temperature=0.7,
        top_k=20,
        top_p=0.8,
        repetition_penalty=1.05,
    )
    return model


def _look_back(attention, strength=6.5):
    """Biases that make the two query heads of the first key head attend one and two positions back.

    Rotary embeddings rotate the biases of a key at j and a query at i so that their product is the sum over frequencies
    f of strength^2 cos((i - back - j) f), which is largest at j = i - back.
    """
    half = HEAD // 2
    frequencies = THETA ** (-torch.arange(half) / half)
    attention.k_proj.bias[:half] = strength
    for head in range(2):
        angles, first = (head + 1) * frequencies, head * HEAD
        attention.q_proj.bias[first : first + half] = strength * torch.cos(angles)
        attention.q_proj.bias[first + half : first + HEAD] = -strength * torch.sin(angles)


def save(model, tokenizer, folder):
    """Saves weights in bfloat16 (half the size), configs, tokenizer and chat template."""
    training = model.training
    half = Qwen2ForCausalLM(model.config).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.generation_config = model.generation_config
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.train(training)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    args = parser.parse_args()
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, args.seed)
    save(model, tokenizer, args.out)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens, written to {args.out}")


if __name__ == "__main__":
    main()
