"""What people read while a command runs: lines and progress, plain where nobody watches."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sealtape.sandbox.results import Brought
from sealtape.sandbox.verdict import Verdict

if TYPE_CHECKING:
    from sealtape.sandbox.attacking import Score


class Screen:
    """Writes to standard error, so that standard output is pytest's alone."""

    def __init__(self) -> None:
        self.lively = sys.stderr.isatty() and not os.environ.get("NO_COLOR")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def section(self, title: str, lines: Sequence[str]) -> None:
        self.say(f"\n{title}")
        for line in lines:
            self.say(f"  {line}")

    @contextmanager
    def working(self, what: str) -> Iterator[Callable[[str], None]]:
        """Shows that something takes time. Yields a function that takes each step of it.

        On a terminal the steps replace each other; in a log every one of them is a line.
        """
        if not self.lively:
            yield lambda step: self.say(f"sealtape: {step}")
            return
        from rich.console import Console

        with Console(stderr=True).status(f"{what} …") as status:
            yield lambda step: status.update(f"{what}: {step}")

    def verdict(self, verdict: Verdict) -> None:
        """The verdict's line; not sealed, also what failed and what would close it."""
        self.say(verdict.line())
        for check in verdict.failures:
            self.say(f"  {check.name}: expected {check.expected}, found {check.found}")
            self.say(f"    closed by {check.closes}")
        if not verdict.sealed:
            self.say("no test was run")

    def results(self, folder: Path, brought: Brought) -> None:
        """What came back from the sandbox, and what was not taken."""
        count = len(brought.files)
        self.say(f"{count} file{'' if count == 1 else 's'} of the tests brought back to {folder}")
        for line in brought.refused:
            self.say(f"  refused {line}")

    def diagnosis(self, engine: str, verdict: Verdict | None, reason: str | None) -> None:
        """An engine's table: every check with what was found."""
        from rich.console import Console
        from rich.table import Table

        console = Console()
        if verdict is None:
            console.print(f"{engine}: not usable here: {reason}", markup=False, highlight=False)
            return
        console.print(verdict.line(), markup=False, highlight=False)
        table = Table(box=None, pad_edge=False)
        for heading in ("", "layer", "check", "found"):
            table.add_column(heading, overflow="fold")
        for check in verdict.checks:
            found = check.found if check.ok else f"{check.found}; expected {check.expected}, closed by {check.closes}"
            table.add_row("ok" if check.ok else "FAILED", check.layer, check.name, found)
        console.print(table, markup=False, highlight=False)

    def attacked(self, engine: str, parts: Sequence[Score] | None, reason: str | None) -> None:
        """An engine's table of attacks: per group what was blocked, and which controls worked outside."""
        from rich.console import Console
        from rich.table import Table

        from sealtape.sandbox.attacking import total

        console = Console()
        if parts is None:
            console.print(f"{engine}: not attacked: {reason}", markup=False, highlight=False)
            return
        console.print(f"{engine} · {total(parts)}", markup=False, highlight=False)
        table = Table(box=None, pad_edge=False)
        for heading in ("group", "blocked", "controls reached"):
            table.add_column(heading)
        for part in parts:
            table.add_row(part.group, f"{part.blocked} of {part.attacks}", f"{part.reached} of {part.attacks}")
        console.print(table, markup=False, highlight=False)
        for name in (name for part in parts for name in part.open):
            console.print(f"OPEN  {name}", markup=False, highlight=False)
        for name in (name for part in parts for name in part.unproven):
            console.print(f"proves nothing on this machine  {name}", markup=False, highlight=False)

    @staticmethod
    def environment() -> dict[str, str]:
        """What the guest needs to know of the terminal, which it does not have."""
        if not sys.stdout.isatty():
            return {}
        size = {"COLUMNS": str(shutil.get_terminal_size().columns)}
        return size if os.environ.get("NO_COLOR") else {**size, "FORCE_COLOR": "1"}
