"""One walk over the project before a run: what the guest must not see, and what it could talk through."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

# Folders that are large and hold nothing of the kind looked for.
PRUNED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis"})
_KINDS = ("file", "masked file", "masked folder", "door", "device", "environment")
_LARGEST_SEARCHED = 16_000_000


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Paths relative to the project, in order.

    `masked_files` and `masked_folders` match a mask; `doors` are sockets and FIFOs;
    `environments` hold an interpreter of the host.
    """

    masked_files: tuple[str, ...]
    masked_folders: tuple[str, ...]
    doors: tuple[str, ...]
    environments: tuple[str, ...]
    with_secrets: tuple[tuple[str, str], ...]


def survey(project: Path, masks: Sequence[str], secrets: Mapping[str, str]) -> Survey:
    """Walk the project once. `with_secrets` are (file, name of the secret) of files left readable."""
    found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    root = project.resolve()
    for kind, path in _walk(root, masks):
        found[kind].append(path)
    masked = sorted(set(found["masked file"]))
    needles = {name: value.encode() for name, value in secrets.items()}
    open_files = sorted(set(found["file"]).difference(masked)) if needles else []
    return Survey(
        masked_files=tuple(masked),
        masked_folders=tuple(sorted(found["masked folder"])),
        doors=tuple(sorted(found["door"])),
        environments=tuple(sorted(found["environment"])),
        with_secrets=tuple((path, name) for path in open_files for name in _secrets_in(root / path, needles)),
    )


def doors_below(folder: Path) -> list[str]:
    """Sockets and FIFOs of a git folder: git's own file watcher keeps one there."""
    doors: list[str] = []
    pending = [str(folder)]
    while pending:
        for entry in _entries(pending.pop()):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in ("objects", "lfs"):
                    pending.append(entry.path)
            elif not entry.is_symlink() and _kind_of_file(entry, masked=False) == "door":
                doors.append(entry.path)
    return sorted(doors)


def _walk(root: Path, masks: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(kind, path relative to the root) of what there is."""
    pending = [str(root)]
    while pending:
        for entry in _entries(pending.pop()):
            path = os.path.relpath(entry.path, root)
            masked = _matches(path, masks)
            if entry.is_symlink():
                # What it leads to must be covered, if that is in the project; elsewhere the guest sees nothing.
                target = Path(entry.path).resolve()
                if masked and target.is_file() and target.is_relative_to(root):
                    yield "masked file", str(target.relative_to(root))
            elif not entry.is_dir():
                yield _kind_of_file(entry, masked=masked), path
            elif _is_environment(entry):
                yield "environment", path
            elif masked:
                yield "masked folder", path
            elif entry.name not in PRUNED:
                pending.append(entry.path)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except PermissionError:
        return  # closed to the caller, and to a guest with the caller's uid


def _matches(path: str, masks: Sequence[str]) -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path if "/" in mask else name, mask.strip("/")) for mask in masks)


def _is_environment(entry: os.DirEntry[str]) -> bool:
    return entry.name in (".nox", ".tox") or os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))  # noqa: PTH110, PTH118 - once per folder of a large tree


def _kind_of_file(entry: os.DirEntry[str], *, masked: bool) -> str:
    if entry.is_file():
        return "masked file" if masked else "file"
    mode = entry.stat(follow_symlinks=False).st_mode
    return "door" if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) else "device"


def _secrets_in(path: Path, needles: Mapping[str, bytes]) -> list[str]:
    try:
        content = path.read_bytes() if path.stat().st_size <= _LARGEST_SEARCHED else b""
    except OSError:
        return []  # not readable for the guest either
    return [name for name, needle in needles.items() if needle in content]
