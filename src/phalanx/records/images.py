"""Detection of image formats and sizes from the first bytes of a file."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_JPEG_SIZE_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True)
class ImageInfo:
    """An image's format (png, jpeg, gif, bmp or webp) and its size in pixels, if known."""

    format: str
    width: int | None = None
    height: int | None = None

    def __str__(self) -> str:
        size = f" {self.width}x{self.height}" if self.width is not None else ""
        return f"{self.format}{size}"


def identify_image(data: bytes) -> ImageInfo | None:
    """The format and size of an image; None if the bytes are no known image.

    >>> identify_image(b"GIF89a" + bytes([64, 0, 48, 0]))
    ImageInfo(format='gif', width=64, height=48)
    """
    try:
        if data[:8] == b"\x89PNG\r\n\x1a\n":
            return ImageInfo("png", *struct.unpack_from(">II", data, 16))
        if data[:6] in (b"GIF87a", b"GIF89a"):
            return ImageInfo("gif", *struct.unpack_from("<HH", data, 6))
        if data[:3] == b"\xff\xd8\xff":
            return _identify_jpeg(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return ImageInfo("webp")
        if data[:2] == b"BM" and len(data) > 26:
            width, height = struct.unpack_from("<ii", data, 18)
            return ImageInfo("bmp", width, abs(height))
    except struct.error:
        return None
    return None


def _identify_jpeg(data: bytes) -> ImageInfo:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker, size = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        if marker in _JPEG_SIZE_MARKERS:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return ImageInfo("jpeg", width, height)
        at += 2 + size
    return ImageInfo("jpeg")
