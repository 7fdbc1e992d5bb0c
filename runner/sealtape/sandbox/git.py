"""Git inside the guest: its history without its tokens.

A CI checkout leaves its token in `.git/config`, people put one into a remote's address. The guest
gets a copy of the configuration that keeps what reading the repository takes, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# What git needs to read a repository. `include` and `credential` are not among them, nor is `http`.
_SECTIONS = frozenset(
    ("branch", "core", "diff", "extensions", "index", "log", "merge", "remote", "submodule", "tag", "user")
)
# Keys that name a program, a secret, or (core.worktree) a place that is elsewhere in the guest.
_DROPPED = re.compile(
    r"askpass|command|editor|fsmonitor|header|hookspath|pager|passw|proxy|secret|token|worktree$", re.IGNORECASE
)
_CREDENTIALS = re.compile(r"(\w://)[^/\s\"]*@")
_SECTION = re.compile(r"\[\s*([\w.-]+)(?:\s+\"((?:[^\"\\]|\\.)*)\")?\s*\]\s*(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Repository:
    """The git part of a project: text files to lay over it, and folders outside that belong to it.

    A key of `files` is relative to the project, or absolute where the file lies outside it.
    """

    files: dict[str, str]
    outside: tuple[Path, ...] = ()


def find_repository(project: Path) -> Repository:
    """What the guest needs so that git works in `project`, also in a worktree or a submodule."""
    dot_git = project / ".git"
    if dot_git.is_dir():
        return Repository(files={str(path.relative_to(project)): text for path, text in _scrubbed(dot_git)})
    if not dot_git.is_file():
        return Repository(files={})
    link = dot_git.read_text(encoding="utf-8", errors="surrogateescape").partition("gitdir:")[2].strip()
    own = (project / link).resolve()
    if not link or not own.is_dir():
        return Repository(files={})
    pointer = own / "commondir"
    common = (own / pointer.read_text(encoding="utf-8").strip()).resolve() if pointer.is_file() else own
    # The link is written anew: the project may lie elsewhere in the guest, and a relative link would miss.
    files = {".git": f"gitdir: {own}\n"}
    outside = [common] if own.is_relative_to(common) else [common, own]
    for folder in outside:
        files |= {str(path): text for path, text in _scrubbed(folder)}
    return Repository(files=files, outside=tuple(outside))


def scrub(config: str) -> str:
    """A git configuration without anything that could be, or lead to, a credential."""
    kept: list[str] = []
    keep = False
    for line in _logical_lines(config):
        text = line.strip()
        match = _SECTION.match(text)
        if match:
            section, name, text = match.groups()
            keep = section.partition(".")[0].lower() in _SECTIONS
            if keep:
                title = f'{section} "{name}"' if name is not None else section
                kept.append(f"[{_without_credentials(title)}]")
        key = text.partition("=")[0].strip()
        if keep and key and key[0] not in "#;" and not _DROPPED.search(key):
            kept.append(f"\t{_without_credentials(text)}")
    return "\n".join(kept) + "\n"


def _scrubbed(git_folder: Path) -> Iterator[tuple[Path, str]]:
    """Every configuration below a git folder: its own, its worktrees', its submodules'."""
    patterns = ("config", "config.worktree", "worktrees/*/config.worktree", "modules/**/config")
    for pattern in patterns:
        for path in sorted(git_folder.glob(pattern)):
            if path.is_file() and not path.is_symlink():
                yield path, scrub(path.read_text(encoding="utf-8", errors="surrogateescape"))


def _logical_lines(config: str) -> Iterator[str]:
    """Lines, with those that end in a backslash joined to the next."""
    pending = ""
    for line in config.splitlines():
        pending += line
        if not pending.endswith("\\"):
            yield pending
            pending = ""
        else:
            pending = pending[:-1]
    yield pending


def _without_credentials(text: str) -> str:
    return _CREDENTIALS.sub(r"\1", text)
