"""One seam per HTTP client library: it translates in, asks the deck, translates out.

A library is patched when it is imported, so that a session costs nothing for those that are
not. A patch stays: without a session it passes every call on untouched, and taking it away
again could undo what another library has put over it meanwhile.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

SEAMS = {
    "httpx": "sealtape.guest.seams._httpx",
    "httpx2": "sealtape.guest.seams._httpx2",
    "urllib3": "sealtape.guest.seams._urllib3",
}
_placed: set[str] = set()


def place() -> None:
    """Puts every seam in place: now where its library is imported, else as soon as it is."""
    for library in SEAMS:
        module = sys.modules.get(library)
        # A library that is being imported right now is caught by the finder, once it is whole.
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _place(library)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _place(library: str) -> None:
    if library not in _placed:
        _placed.add(library)
        importlib.import_module(SEAMS[library]).place()


class _Finder(MetaPathFinder):
    """Lets the other finders find a library, and places its seam after it has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in SEAMS or fullname in _placed:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, fullname)
                return spec
        return None


class _Loader(Loader):
    def __init__(self, inner: Loader, library: str) -> None:
        self._inner = inner
        self._library = library

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The library sees its own loader, as if nobody had stood between.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        _place(self._library)
