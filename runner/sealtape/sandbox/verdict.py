"""The verdict: what the host's controls, the engine's inspection and the guest's probes say together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Layer = Literal["control", "engine", "probe"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at, and what would close it if it is open."""

    name: str
    expected: str
    found: str
    ok: bool
    closes: str
    layer: Layer


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Sealed, or not sealed and why. No test runs without `sealed`."""

    engine: str
    checks: tuple[Check, ...]

    @property
    def sealed(self) -> bool:
        """Every check held, and each of the three layers was looked at: silence is no proof."""
        return all(check.ok for check in self.checks) and {check.layer for check in self.checks} == set(LAYERS)

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.ok)

    def line(self) -> str:
        """The verdict in one line."""
        probes = [check for check in self.checks if check.layer == "probe"]
        count = f"{sum(check.ok for check in probes)}/{len(probes)} probes"
        if self.sealed:
            return f"sealed   {self.engine} · no network · {count} · no key · read-only project"
        reasons = ", ".join(check.name for check in self.failures[:_NAMED]) or "nothing was probed"
        more = f" and {len(self.failures) - _NAMED} more" if len(self.failures) > _NAMED else ""
        return f"not sealed   {self.engine} · {count} · {reasons}{more}"

    def to_json(self) -> dict[str, Any]:
        checks = [asdict(check) for check in self.checks]
        return {"sealed": self.sealed, "engine": self.engine, "line": self.line(), "checks": checks}


LAYERS: tuple[Layer, ...] = ("control", "engine", "probe")
_NAMED = 3


def probe_checks(results: Iterable[Mapping[str, Any]]) -> list[Check]:
    """The guest's results as checks."""
    return [
        Check(
            name=str(result["name"]),
            expected=str(result["expected"]),
            found=str(result["found"]),
            ok=result["ok"] is True,
            closes=str(result["closes"]),
            layer="probe",
        )
        for result in results
    ]


def engine_check(name: str, expected: object, found: object, closes: str) -> Check:
    """A check of the engine's inspection that holds if what was found is what was expected."""
    return Check(
        name=name, expected=str(expected), found=str(found), ok=expected == found, closes=closes, layer="engine"
    )
