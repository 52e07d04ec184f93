"""Families outside Qwen that differ from the general module."""

from __future__ import annotations

from model.vision_language import VisionLanguageModule


class Gemma3Module(VisionLanguageModule):
    """Gemma 3: the tokens of a picture attend to each other in both directions, and layers have sliding windows."""

    sees_both_ways = True

    def token_types(self, input_ids):
        return {"token_type_ids": (input_ids == self.placeholders["image"]).long()}
