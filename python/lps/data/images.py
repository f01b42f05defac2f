"""Decoding images whose size is known before they are opened, from archives of data sets."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from lps.data.files import FETCH_AGAIN, Bytes, unlike, unreadable
from lps.errors import DataError


def decode(
    data: bytes,
    where: Path,
    what: str,
    kind: str,
    size: tuple[int, int],
    mode: str,
    remedy: str = FETCH_AGAIN,
    *,
    others: tuple[str, ...] = (),
) -> Bytes:
    """Decode one image of this kind, width and height; its size is checked before its pixels are decoded.

    ``what`` names it in the file ``where``. It must have this mode of Pillow's, or one of ``others``, which are
    converted.
    """
    try:
        with Image.open(io.BytesIO(data), formats=[kind]) as image:
            if image.mode not in (mode, *others) or image.size != size:
                got = f"{image.mode} {image.width}x{image.height}"
                raise unlike(where, what, f"{mode} {size[0]}x{size[1]}", got, remedy)
            return np.array(image if image.mode == mode else image.convert(mode))
    except UnidentifiedImageError:
        name = {"WEBP": "WebP"}.get(kind, kind)
        raise unlike(where, what, f"a {name} image", "something else", remedy) from None
    except DataError:
        raise
    except Exception as error:  # whatever Pillow raises for a damaged image
        raise unreadable(where, error, remedy) from None
