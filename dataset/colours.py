"""Converts any Pillow mode to 8-bit sRGB: grey of more than 8 bits, transparency, colour profiles."""

from __future__ import annotations

import functools
import io

import numpy as np
from PIL import Image, ImageCms

# Tags of grey TIFFs that Pillow does not apply: they define the meaning of the values.
BITS_TAG, SENSE_TAG, SAMPLE_FORMAT_TAG = 258, 262, 339
WHITE_IS_ZERO, UNSIGNED, SIGNED = 0, 1, 2
# Formats in which programs often leave the alpha channel 0; viewers show such pictures opaque.
UNSURE_ALPHA = ("BMP", "DIB", "ICO", "TGA")
# Colour space of a profile -> the modes it applies to.
PROFILED = {"RGB ": ("RGB",), "GRAY": ("L",), "CMYK": ("CMYK",), "Lab ": ("LAB",)}
FLOAT_WHITES, WIDE_WHITES = (1, 255, 65535), (255, 65535)  # of floats, and of integers of more than 16 bits
SRGB = ImageCms.createProfile("sRGB")


def to_rgb(image: Image.Image) -> Image.Image:
    """A new RGB picture with the same pixels and none of the metadata.

    Transparency is composited on white; grey of more than 8 bits is scaled by the range of its type; colours are
    converted to sRGB by the picture's ICC profile with perceptual intent. Like viewers, it ignores a profile that is
    unreadable or belongs to another mode.
    """
    profile, unsure = image.info.get("icc_profile"), image.format in UNSURE_ALPHA
    if image.mode.startswith(("I", "F")) or _is_signed(image):
        image = _grey(image)
    elif image.mode in ("1", "P", "PA", "La", "RGBa"):
        image = image.convert("RGBA" if image.has_transparency_data else "L" if image.mode == "1" else "RGB")
    alpha = None
    if image.has_transparency_data:
        alpha = image.convert("RGBA").getchannel("A")
        alpha = None if unsure and alpha.getextrema() == (0, 0) else alpha
        image = image.convert("L" if image.mode in ("L", "LA") else "RGB")
    rgb = _profiled(image, profile)
    canvas = Image.new("RGB", image.size, (255, 255, 255))
    canvas.paste(rgb, mask=alpha)
    return canvas


def to_8_bit(values: np.ndarray, whites: tuple[float, ...]) -> np.ndarray:
    """Values -> 0..255, where 255 is the smallest white that is not exceeded.

    Values outside every range (depth maps, negative numbers) are stretched from minimum to maximum. NaN and infinity
    become black.
    """
    values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = values.min(), values.max()
    white = next((white for white in whites if low >= 0 and high <= white), None)
    if white is None:
        values, white = values - low, (high - low) or 1.0
    return np.round(values * (255.0 / white)).astype(np.uint8)


def _profiled(image: Image.Image, profile: bytes | None) -> Image.Image:
    """The picture in sRGB."""
    if image.mode == "LAB":
        return ImageCms.profileToProfile(image, ImageCms.createProfile("LAB"), SRGB, outputMode="RGB")
    transform = _transform(profile, image.mode) if profile else None
    return image.convert("RGB") if transform is None else ImageCms.applyTransform(image, transform)


@functools.lru_cache(maxsize=32)  # cameras and scanners write one profile into every picture
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """From a profile to sRGB; None if it is unreadable, of another mode, or changes no colour by over one level."""
    try:
        described = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if mode not in PROFILED.get(described.profile.xcolor_space, ()):
            return None
        transform = ImageCms.buildTransform(described, SRGB, mode, "RGB")
    except (ImageCms.PyCMSError, OSError):
        return None
    if mode == "CMYK":
        return transform
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    lattice = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(1, -1, 3) if mode == "RGB" else levels[None]
    before = Image.fromarray(lattice)
    after = np.asarray(ImageCms.applyTransform(before, transform), dtype=int)
    return transform if np.abs(after - np.asarray(before.convert("RGB"), dtype=int)).max() > 1 else None


def _grey(image: Image.Image) -> Image.Image:
    values, see_through = _grey_values(image), image.info.get("transparency")
    grey = to_8_bit(values, _whites(image))
    if getattr(image, "tag_v2", {}).get(SENSE_TAG) == WHITE_IS_ZERO:
        grey = 255 - grey
    return Image.fromarray(grey if see_through is None else np.where(values == see_through, np.uint8(255), grey))


def _is_signed(image: Image.Image) -> bool:
    """True for an 8-bit grey TIFF of signed numbers, which Pillow reads as unsigned ones."""
    return image.mode == "L" and getattr(image, "tag_v2", {}).get(SAMPLE_FORMAT_TAG) == (SIGNED,)


def _grey_values(image: Image.Image) -> np.ndarray:
    values, tags = np.asarray(image), getattr(image, "tag_v2", {})
    if image.mode == "L":
        return values.view(np.int8)
    unsigned = tags.get(SAMPLE_FORMAT_TAG, (UNSIGNED,))[0] == UNSIGNED
    # Pillow reads unsigned 32-bit values as signed, which would turn the brightest values into the darkest.
    return values.view(np.uint32) if tags.get(BITS_TAG) == (32,) and image.mode == "I" and unsigned else values


def _whites(image: Image.Image) -> tuple[int, ...]:
    """The possible values of white in a grey picture of more than 8 bits, or of signed bytes, in ascending order.

    If the *type* defines white, only that value, so that pictures of one type stay comparable: 65535 for I;16 of any
    byte order and for PGM, which Pillow reads as I; 4095 for a 12-bit TIFF. Other I and F pictures define no white:
    float pictures in 0..1, 0..255 and 0..65535 are all common. Signed bytes have none.
    """
    if image.mode == "L":
        return ()
    if image.mode == "F":
        return FLOAT_WHITES
    if image.mode == "I" and image.format != "PPM":
        return WIDE_WHITES
    return (4095,) if getattr(image, "tag_v2", {}).get(BITS_TAG) == (12,) else (65535,)
