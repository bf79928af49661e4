"""The segments of a JPEG file."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

START_OF_IMAGE, END_OF_IMAGE, START_OF_SCAN, APP1 = 0xD8, 0xD9, 0xDA, 0xE1
# Markers (ITU-T T.81, table B.1) that libjpeg acts on. It passes over all others, which are in the data of a scan:
# stuffed bytes, restart markers and reserved ones.
MARKERS = bytes((*range(0xC0, 0xD0), *range(0xD8, 0xFF)))
MARKER = re.compile(b"\xff[" + re.escape(MARKERS) + b"]")
# A segment begins with 0xFF, its marker, and the length of what follows, including the length's own two bytes.
SEGMENT = struct.Struct(">BBH")


def jpeg_segments(encoded: memoryview) -> Iterator[tuple[int, slice]]:
    """Yield the marker of each segment and the place of its content, as libjpeg finds them, up to the end of the image.

    A marker in the content of a segment or behind the end of the image is none; one in the data of a scan is.
    """
    position = 2
    while position + SEGMENT.size <= len(encoded):
        start, marker, nbytes = SEGMENT.unpack_from(encoded, position)
        if start != 0xFF or marker not in MARKERS:
            found = MARKER.search(encoded, position)
            if found is None:
                return
            position = found.start()
        elif marker == END_OF_IMAGE:
            return
        elif marker == START_OF_IMAGE:
            position += 2
        else:
            end = position + 2 + max(2, nbytes)
            yield marker, slice(position + SEGMENT.size, end)
            position = end
