"""What the tests wrote, brought back to the host: `--out DIR`.

The guest wrote it, so it is looked at as something that a stranger sent: regular files only, each
opened without following a link, each with one name, and nothing leaves the folder it is meant for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sealtape.errors import UsageError
from sealtape.sandbox.policy import RESULTS

# pytest's options that name a file to write, and what pytest-cov calls its reports if no name is given.
_FILE_OPTIONS = ("--junitxml", "--junit-xml")
_COVERAGE_OPTION = "--cov-report"
_COVERAGE_REPORTS = {"annotate": "annotated", "html": "htmlcov", "json": "coverage.json", "lcov": "coverage.lcov"} | {
    "markdown": "coverage.md",
    "xml": "coverage.xml",
}
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@dataclass(frozen=True, kw_only=True)
class Brought:
    """What came back: paths below the folder, and the refused ones, each with the reason."""

    files: tuple[str, ...]
    refused: tuple[str, ...]


def prepare_out(folder: Path, project: Path) -> None:
    """Makes the folder for results, before any test runs. Raises `UsageError`."""
    target = folder.resolve()
    if project.resolve().is_relative_to(target):
        raise UsageError(
            f"--out {folder} is the project itself, whose files the results could replace",
            tip="name a folder of its own: --out results",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission denied")
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written: {error.strerror}") from error


def placed_results(args: Sequence[str], folder: Path | None) -> tuple[str, ...]:
    """The arguments for pytest, with the files they name where the guest can write them.

    A path below `folder`, or a relative one, is that file in the folder. Raises `UsageError` for
    a file that would be lost with the sandbox, or that lies elsewhere.
    """
    placed: list[str] = []
    before = ""
    for argument in args:
        option, equals, value = argument.partition("=")
        if before:
            placed.append(_value(before, argument, folder))
            before = ""
        elif option not in (*_FILE_OPTIONS, _COVERAGE_OPTION):
            placed.append(argument)
        elif equals:
            placed.append(f"{option}={_value(option, value, folder)}")
        else:
            placed.append(argument)
            before = option
    return tuple(placed)


def bring_back(source: Path, target: Path, *, reserved: Sequence[str] = ()) -> Brought:
    """Copies what lies in `source` to `target`; names in `reserved` are the run's own."""
    files: list[str] = []
    refused: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            here = stack.enter_context(_opened(source, _FOLDER))
        except OSError:  # the guest may rename what lies in its folder
            return Brought(files=(), refused=(f"all: $SEALTAPE_OUT is no folder any more ({source.name})",))
        there = stack.enter_context(_opened(target, os.O_RDONLY | os.O_DIRECTORY))
        for path, reason in _copy(here, there, "", frozenset(reserved)):
            (refused if reason else files).append(f"{path!r}: {reason}" if reason else path)
    return Brought(files=tuple(files), refused=tuple(refused))


def _value(option: str, value: str, folder: Path | None) -> str:
    if option != _COVERAGE_OPTION:
        return _in_guest(option, value, folder)
    kind, _, path = value.partition(":")
    if kind not in _COVERAGE_REPORTS:
        return value
    return f"{kind}:{_in_guest(f'{option}={kind}', path or _COVERAGE_REPORTS[kind], folder)}"


def _in_guest(option: str, path: str, folder: Path | None) -> str:
    if path.startswith((RESULTS, "$SEALTAPE_OUT")):
        return path
    if folder is None:
        raise UsageError(
            f"{option} writes a file, and a sealed run leaves nothing in the project",
            tip="add --out results: the file is brought back to that folder",
        )
    target = folder.resolve()
    wanted = Path(path).resolve()
    inside = wanted if wanted.is_relative_to(target) else Path(os.path.normpath(target / path))
    if not inside.is_relative_to(target) or inside == target:
        raise UsageError(f"{option}: {path} is not in {folder}", tip="relative paths are relative to the --out folder")
    return str(Path(RESULTS, inside.relative_to(target)))


def _copy(here: int, there: int, parent: str, reserved: frozenset[str]) -> Iterator[tuple[str, str]]:
    """(path, why it was refused, or nothing) of what lies in the folder `here`, once it is `there`."""
    for name in sorted(os.listdir(here)):
        path = f"{parent}{name}"
        status = os.stat(name, dir_fd=here, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        try:
            if name in reserved and not parent:
                yield path, "the run writes a file of that name itself"
            elif kind == stat.S_IFDIR:
                with _opened(name, _FOLDER, here) as inner, _folder(name, there) as outer:
                    yield from _copy(inner, outer, f"{path}/", reserved)
            elif kind != stat.S_IFREG:
                yield path, _KINDS.get(kind, "no regular file")
            elif status.st_nlink > 1:
                yield path, "a hard link"
            else:
                _copy_file(name, here, there)
                yield path, ""
        except OSError as error:
            yield path, str(error.strerror).lower()


def _copy_file(name: str, here: int, there: int) -> None:
    new = f".{os.getpid()}.sealtape"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with _opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, here) as source:
        try:
            with (
                _opened(new, flags, there) as target,
                open(source, "rb", closefd=False) as reading,
                open(target, "wb", closefd=False) as writing,
            ):
                shutil.copyfileobj(reading, writing)
            # Over whatever has the name, be it a link: it is replaced, and never written through.
            os.replace(new, name, src_dir_fd=there, dst_dir_fd=there)
        except OSError:
            os.unlink(new, dir_fd=there)
            raise


@contextmanager
def _folder(name: str, parent: int) -> Iterator[int]:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    with _opened(name, _FOLDER, parent) as folder:
        yield folder


@contextmanager
def _opened(path: str | Path, flags: int, parent: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o666, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
