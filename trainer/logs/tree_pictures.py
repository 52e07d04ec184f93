"""The pictures that an agent's environment showed, scaled down for a line of trees.jsonl."""

from __future__ import annotations

import base64
import io

from PIL import Image

from trainer.tree import Node

SIDE = 160  # pixels of the longer side
MOST = 4  # pictures per node


def pictures_of(node: Node) -> list[str]:
    """Data URLs (PNG or JPEG) of the pictures in an observation, in order; [] for any other node."""
    if node.media is None:
        return []
    results = getattr(getattr(node.extra, "point", None), "results", ())
    shown = [part["image"] for result in results for part in result if part["type"] == "image"]
    return [_data_url(picture) for picture in shown[:MOST]]


def _data_url(picture: Image.Image) -> str:
    small = picture.copy()
    small.thumbnail((SIDE, SIDE))
    # drawings are smaller as PNG, photographs as JPEG
    kind, content = min(((kind, _encoded(small, kind)) for kind in ("png", "jpeg")), key=lambda made: len(made[1]))
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _encoded(picture: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getvalue()
