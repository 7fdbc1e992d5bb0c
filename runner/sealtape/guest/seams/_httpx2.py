"""The seam in httpx2."""

from __future__ import annotations

import httpx2

from sealtape.guest.seams._transport import Seam


def place() -> None:
    Seam(httpx2).place()
