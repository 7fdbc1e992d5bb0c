"""The seam in httpx."""

from __future__ import annotations

import httpx

from sealtape.guest.seams._transport import Seam


def place() -> None:
    Seam(httpx).place()
