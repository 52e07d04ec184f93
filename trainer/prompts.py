"""Dataset rows -> encoded prompts, with the two things that can be wrong with one: its media and its length."""

from __future__ import annotations

from dataset.dataset_grpo import load_media, read_row
from dataset.media import MediaError
from model.vlm_module import EncodedPrompt, VLMModule


class PromptError(ValueError):
    """A prompt that cannot be trained on; the sentence names record, rule and way out."""


class PromptEncoder:
    """Encodes prompts; what cannot be used stops the run or is skipped, by flag, and is never cut or replaced.

    Args:
        module: the model family.
        max_prompt_length: tokens, media included.
        on_long_prompt, on_bad_media: "error" or "skip".

    Attributes:
        skipped: record id -> reason, for the final count.
        media_loads: pictures and videos decoded so far (each once a prompt and generation).
    """

    def __init__(self, module: VLMModule, max_prompt_length: int, on_long_prompt: str, on_bad_media: str):
        self.module, self.max_prompt_length = module, max_prompt_length
        self.on_long_prompt, self.on_bad_media = on_long_prompt, on_bad_media
        self.skipped: dict[str, str] = {}
        self.media_loads = 0

    def encode(self, row: dict) -> EncodedPrompt | None:
        """The encoded prompt of a row, or None if it is skipped (its leaves then abstain and count as failed)."""
        record = read_row(row)
        try:
            images, videos = load_media(record)
        except MediaError as error:
            if self.on_bad_media == "error":
                raise
            return self._skip(record["id"], str(error))
        self.media_loads += len(images) + len(videos)
        try:
            prompt = self.module.encode(record["messages"], images, videos)
        except ValueError as error:
            raise PromptError(f"record {record['id']}: {error}") from error
        if len(prompt.ids) > self.max_prompt_length:
            reason = (
                f"record {record['id']}: the prompt has {len(prompt.ids)} tokens, over max_prompt_length="
                f"{self.max_prompt_length}; lower max_pixels, raise max_prompt_length, or set on_long_prompt to skip"
            )
            if self.on_long_prompt == "error":
                raise PromptError(reason)
            return self._skip(record["id"], reason)
        return prompt

    def blank(self) -> EncodedPrompt:
        """An empty prompt without media, to stand where a skipped one would."""
        return self.module.encode([{"role": "user", "content": [{"type": "text", "text": ""}]}], [], [])

    def _skip(self, record_id: str, reason: str) -> None:
        if record_id not in self.skipped:
            print(f"skipped: {reason}")
        self.skipped[record_id] = reason
