"""What bounds decoding: every step reads the language model's weights and the keys and values of all live rows."""

import time

import torch

COPIED = 2**28  # bytes; far larger than any cache


def bandwidth(device: str) -> float:
    """Bytes per second of a copy inside the device's memory, read and written; the best of five."""
    source = torch.empty(COPIED, dtype=torch.uint8, device=device).fill_(1)
    target, seconds = torch.empty_like(source), []
    for _ in range(5):
        _wait(device)
        begin = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - begin)
    return 2 * COPIED / min(seconds)


def bytes_of_tree(model, prompt_tokens: int, sizes: dict) -> tuple[float, int]:
    """(bytes that the decoding steps of a K x M tree read, number of these steps)."""
    K, M, thought, answer = (sizes[name] for name in ("think_num", "answer_num", "thought", "answer"))
    weights, per_token = weight_bytes(model), token_bytes(model)
    lengths = [(K, prompt_tokens + step) for step in range(1, thought + 1)]
    lengths += [(K * M, prompt_tokens + thought + step) for step in range(1, answer)]
    return sum(weights + rows * length * per_token for rows, length in lengths), len(lengths)


def weight_bytes(model) -> int:
    """Of what a step reads: everything but the vision tower and, unless it is the LM head too, the embedding."""
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    read = [weight for name, weight in model.named_parameters() if "visual." not in name]
    return sum(weight.nbytes for weight in read if weight is not embedding or weight is head)


def token_bytes(model) -> int:
    """Keys and values of one token of one row."""
    text = model.config.get_text_config()
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * text.num_key_value_heads * head_size * model.dtype.itemsize


def report(model, prompt_tokens: int, sizes: dict, seconds: float) -> dict[str, float]:
    """Metrics of a tree that took so many seconds, prefill included: the bandwidth, and the time it allows at best."""
    device, (total, steps) = model.device.type, bytes_of_tree(model, prompt_tokens, sizes)
    speed = bandwidth(device)
    return {
        "step_bytes": total / steps,
        "bandwidth_bytes_per_s": speed,
        "step_ms": 1000 * seconds / steps,
        "step_ms_at_bandwidth": 1000 * total / steps / speed,
        "share_of_bandwidth": total / speed / seconds,
    }


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
