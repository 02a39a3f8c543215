from __future__ import annotations

import struct

from phalanx.records.images import ImageInfo, identify_image


def test_image_formats_and_sizes_are_detected() -> None:
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 7, 9)
    assert identify_image(png) == ImageInfo("png", 7, 9)
    jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x0b\x08\0\x30\0\x40\x01"
    assert identify_image(jpeg) == ImageInfo("jpeg", 64, 48)
    assert identify_image(b"nothing of the kind") is None
    assert identify_image(b"") is None
    for cut in range(len(jpeg)):
        identify_image(jpeg[:cut])
