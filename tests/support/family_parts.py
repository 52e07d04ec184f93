"""Sizes and token ids that the small models of all families share."""

HIDDEN, HEADS, KV_HEADS, HEAD = 64, 4, 2, 16
CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def text_config(tokens, layers=2, **changes) -> dict:
    """The part of a text config that is the same in most families; grouped heads as in all of their checkpoints."""
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": layers, "vocab_size": len(tokens)}
    sizes |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "initializer_range": 0.1}
    ids = {"bos_token_id": tokens.bos_token_id, "eos_token_id": tokens.eos_token_id, "pad_token_id": None}
    return sizes | {"max_position_embeddings": 2048} | ids | changes


def token_ids(tokens, **named) -> dict:
    return {name: tokens.convert_tokens_to_ids(token) for name, token in named.items()}
