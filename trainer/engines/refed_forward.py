"""Forward passes of a batch for a model whose cache cannot be forked: each row has a cache of its own.

A row that begins as another's copy, or comes back to the batch, is fed everything again at its next step. Results are
those of `BatchForward`; the cost is that of a whole row for every child of a fork (`forking_cost`).
"""

# R live rows, B prompts, n tokens of a row, m tokens fed to it, A entering rows, V vocabulary

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import DynamicCache

from trainer.engines.batch_forward import PendingTokens, cache_argument
from trainer.engines.media_features import MediaFeatures


@dataclass
class _Row:
    """ids (n,) and positions (axes..., n) fed so far, their media, and the cache: None until all is fed again."""

    ids: Tensor
    positions: Tensor
    media: list = field(default_factory=list)
    next_position: int = 0
    cache: DynamicCache | None = None


class RefedForward:
    """The interface of `BatchForward`. Outside the batch, a row is its ids and positions, (n, 1 + axes) integers.

    What `BatchForward` keeps as a row's recurrent state is here the list of media among its tokens.
    """

    recurrent = True

    def __init__(self, model, media: MediaFeatures, prompts: list, pad_id: int):
        self.model, self.media, self.prompts = model, media, prompts
        self.device = model.device
        self.prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
        self.fed_tokens = 0
        self.axes = prompts[0].position_ids.shape[:-1]
        self.rows: list[_Row] = []

    @property
    def length(self) -> int:
        return max(len(row.ids) for row in self.rows)

    @property
    def pads(self) -> list[int]:
        return [self.length - len(row.ids) for row in self.rows]

    def prefill(self) -> Tensor:
        """Logits (B, V) after each prompt, pictures included."""
        media = [[prompt] if prompt.media else [] for prompt in self.prompts]
        self.rows = [
            _Row(torch.tensor(prompt.ids), prompt.position_ids, shown, prompt.next_position)
            for prompt, shown in zip(self.prompts, media, strict=True)
        ]
        return torch.cat([self._feed(row) for row in self.rows])

    def select(self, sources: list[int]) -> Tensor:
        """Row i becomes a copy of the old row sources[i]; the first copy takes over the cache."""
        taken, rows = set(), []
        for source in sources:
            rows.append(replace(self.rows[source], **({"cache": None} if source in taken else {})))
            taken.add(source)
        self.rows = rows
        return torch.tensor(sources, dtype=torch.long, device=self.device)

    def step(self, tokens: Tensor) -> Tensor:
        """Feeds one token per row, (R,), and returns the logits (R, V) after it."""
        return torch.cat([self._append(row, token) for row, token in zip(self.rows, tokens.tolist(), strict=True)])

    def take(self, row: int, begin: int, end: int) -> Tensor:
        """Ids and positions (end - begin, 1 + axes) of slots [begin, end) of a row; all rows end in the same slot."""
        pad, kept = self.pads[row], self.rows[row]
        table = torch.cat([kept.ids[None], kept.positions.reshape(-1, len(kept.ids))])
        return table[:, begin - pad : end - pad].T.clone()

    def state(self, row: int) -> list:
        return list(self.rows[row].media)

    def enter(self, states: list[Tensor], next_positions: list[int], media: Sequence[list]) -> None:
        """Appends rows with the given ids and positions, next positions and media."""
        for table, position, shown in zip(states, next_positions, media, strict=True):
            self.rows.append(_Row(*self._split(table), list(shown), position))

    def extend(self, rows: list[PendingTokens]) -> tuple[list[Tensor], list[list], Tensor]:
        """See `BatchForward.extend`."""
        found = []
        for pending in rows:
            new = torch.cat([torch.tensor([pending.ids]), pending.positions.reshape(-1, len(pending.ids))]).T
            media = [*(pending.recurrent or ()), *pending.media]
            row = _Row(*self._split(torch.cat([pending.states, new])), media)
            found.append((new, media, self._feed(row)))
        new, media, logits = zip(*found, strict=True)
        return list(new), list(media), torch.cat(logits)

    def _split(self, table: Tensor) -> tuple[Tensor, Tensor]:
        return table[:, 0], table[:, 1:].T.reshape(*self.axes, len(table))

    def _append(self, row: _Row, token: int) -> Tensor:
        row.ids = torch.cat([row.ids, torch.tensor([token])])
        row.positions = torch.cat([row.positions, torch.full((*self.axes, 1), row.next_position)], dim=-1)
        row.next_position += 1
        return self._feed(row, begin=0 if row.cache is None else len(row.ids) - 1)

    def _feed(self, row: _Row, begin: int = 0) -> Tensor:
        """Logits (1, V) after a row, whose tokens from `begin` on are fed to its cache, or all to a new one."""
        if begin == 0:
            row.cache = DynamicCache(config=self.model.config)
        ids, positions = row.ids[None, begin:].to(self.device), row.positions[..., begin:].unsqueeze(-2).to(self.device)
        self.fed_tokens += ids.shape[1]
        media = self.media.arguments(row.media) if begin == 0 else {}
        if media:
            media |= self.media.module.token_types(ids)
        given = {cache_argument(self.model): row.cache, "use_cache": True, "logits_to_keep": 1} | media
        return self.model(input_ids=ids, position_ids=positions, **given).logits[:, -1]
