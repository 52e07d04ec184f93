"""Dataset rows -> encoded prompts; unusable media and overlong prompts stop the run or are skipped."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from dataset.dataset_grpo import load_media, read_row
from dataset.media import MediaError
from model.vlm_module import EncodedPrompt, VLMModule
from task.errors import UserError


class PromptError(UserError):
    """A prompt that cannot be trained on; the message names the record, the rule and the way out."""


class PromptEncoder:
    """Encodes prompts. An unusable prompt stops the run or is skipped, as set; prompts are never truncated.

    A background thread reads pictures, resizes them and cuts them into patches, so the prompts of the next generation
    can be encoded while this one trains (`prefetch`). An error in a prefetched prompt is raised by `encode`.

    Args:
        module: the model family.
        max_prompt_length: in tokens, media included.
        on_long_prompt, on_bad_media: "error" or "skip".
        max_slots: limit on the slots of a path (a prompt and a completion of `completion` tokens); None: no limit.
        completion: longest completion in tokens.

    Attributes:
        skipped: record id -> reason, for the final count.
        media_loads: pictures and videos decoded so far (each once per prompt and generation).
    """

    def __init__(
        self,
        module: VLMModule,
        max_prompt_length: int,
        on_long_prompt: str,
        on_bad_media: str,
        max_slots: int | None = None,
        completion: int = 0,
    ):
        self.module, self.max_prompt_length = module, max_prompt_length
        self.on_long_prompt, self.on_bad_media = on_long_prompt, on_bad_media
        self.max_slots, self.completion = max_slots, completion
        self.skipped: dict[str, str] = {}
        self.media_loads = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prompts")
        self._ahead: dict[str, Future] = {}

    def prefetch(self, rows: list[dict]) -> None:
        """Starts encoding rows that `encode` is expected to need next, and drops rows prefetched earlier."""
        for future in self._ahead.values():
            future.cancel()
        self._ahead = {row["record"]: self._thread.submit(self._read, row["record"]) for row in rows}

    def encode(self, row: dict) -> EncodedPrompt | None:
        """The encoded prompt of a row, or None if it is skipped (its leaves get no reward and count as failed)."""
        future = self._ahead.pop(row["record"], None) or self._thread.submit(self._read, row["record"])
        try:
            prompt = future.result()
        except MediaError as error:
            if self.on_bad_media == "error":
                raise
            return self._skip(read_row(row)["id"], str(error))
        if len(prompt.ids) > self.max_prompt_length:
            name = read_row(row)["id"]
            reason = (
                f"record {name}: the prompt has {len(prompt.ids)} tokens, over max_prompt_length="
                f"{self.max_prompt_length}; lower max_pixels, raise max_prompt_length, or set on_long_prompt to skip"
            )
            if self.on_long_prompt == "error":
                raise PromptError(reason)
            return self._skip(name, reason)
        path = len(prompt.ids) - 1 + self.completion
        if self.max_slots is not None and path > self.max_slots:
            raise PromptError(
                f"record {read_row(row)['id']}: its prompt of {len(prompt.ids)} tokens with a completion of "
                f"{self.completion} needs {path} slots, and max_slots={self.max_slots} must hold at least one path: "
                "raise max_slots, lower max_pixels, or allow shorter completions"
            )
        return prompt

    def blank(self) -> EncodedPrompt:
        """An empty prompt without media, as a placeholder for a skipped one."""
        return self.module.encode([{"role": "user", "content": [{"type": "text", "text": ""}]}], [], [])

    def _read(self, record: str) -> EncodedPrompt:
        record = read_row({"record": record})
        images, videos = load_media(record)
        self.media_loads += len(images) + len(videos)
        try:
            return self.module.encode(record["messages"], images, videos)
        except ValueError as error:
            raise PromptError(f"record {record['id']}: {error}") from error

    def _skip(self, record_id: str, reason: str) -> None:
        if record_id not in self.skipped:
            print(f"skipped: {reason}")
        self.skipped[record_id] = reason
