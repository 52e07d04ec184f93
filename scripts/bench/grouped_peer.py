"""The packed step of the package prefix-grouper: the prompt once, followed by every completion as a separate row.

It shares the prompt of a group, picture included, but nothing between completions. `pip install prefix-grouper`; the
training benchmark skips this side if the package is not installed.
"""

import importlib.util

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

INSTALLED = importlib.util.find_spec("prefix_grouper") is not None
NAME = "grouped_peer"


def _attention(module, query, key, value, attention_mask, *args, prefix_grouper, **kwargs):
    def attend(q, k, v, key_padding):  # all rows have the same length here, so nothing is padded
        queries, keys = q.shape[2], k.shape[2]
        causal = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        return sdpa_attention_forward(module, q, k, v, causal[None, None], **options)[0]

    options = {name: kwargs[name] for name in ("dropout", "scaling") if name in kwargs}
    return prefix_grouper.forward(attend, query, key, value), None


def grouped_step(module, model, prompt, rows):
    """(R, T) log-probs of rows after one prompt, with that package and the language model's attention."""
    from prefix_grouper import PrefixGrouper

    AttentionInterface.register(NAME, _attention)
    before = model.config.get_text_config()._attn_implementation
    prompt_tokens, count, length = len(prompt.ids), len(rows), len(rows[0])
    grouper = PrefixGrouper(group_info=[[prompt_tokens, *[length] * count]], device=model.device)
    ids = torch.tensor([[*prompt.ids, *(token for row in rows for token in row)]], device=model.device)
    behind = (prompt.next_position + torch.arange(length)).repeat(count).expand(3, -1)
    positions = torch.cat([prompt.position_ids, behind], dim=1)[:, None].to(model.device)
    model.set_attn_implementation({"text_config": NAME})
    hidden = model.model(
        input_ids=ids,
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=model.device),  # any 4-D mask: it is not read
        position_ids=positions,
        use_cache=False,
        prefix_grouper=grouper,
        **{name: value.to(model.device) for name, value in module.batch_media([prompt]).items()},
    ).last_hidden_state
    model.set_attn_implementation({"text_config": before})
    _, _, suffixes, _ = grouper.split_output(hidden, include_prefix_last=1)
    scores = model.lm_head(suffixes[:, :-1]).float().log_softmax(-1)
    return scores.gather(-1, torch.tensor(rows, device=model.device)[..., None])[..., 0]
