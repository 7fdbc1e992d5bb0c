"""The sessions: `nox -s replay`, `nox -s record`, and what keeps the project in order."""

from __future__ import annotations

import nox

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["replay"]
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"

PROJECT = nox.project.load_toml("pyproject.toml")


def _install(session: nox.Session, group: str) -> None:
    """The project with its runner, and one of its dependency groups."""
    session.install("-e", ".[runner]", *nox.project.dependency_groups(PROJECT, group))


@nox.session
def replay(session: nox.Session) -> None:
    """The application's tests, sealed: no network, no key, recordings only."""
    _install(session, "app")
    session.run("sealtape", "replay", *session.posargs)


@nox.session(default=False)
def record(session: nox.Session) -> None:
    """The one session with a way out: the broker, which holds the key."""
    _install(session, "app")
    session.run("sealtape", "record", *session.posargs)


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """The images for the Docker engine."""
    _install(session, "app")
    session.run("sealtape", "build", *session.posargs)


@nox.session(default=False)
def doctor(session: nox.Session) -> None:
    """Which engines work here, and how well they seal."""
    _install(session, "app")
    session.run("sealtape", "doctor", *session.posargs)


@nox.session(default=False)
def tests(session: nox.Session) -> None:
    """The project's own tests. They need both engines."""
    _install(session, "tests")
    if session.posargs:
        session.run("pytest", *session.posargs)
    else:
        session.run("pytest", "-n", "2", "tests/app", "tests/broker", "tests/guest", "tests/unit")
        # One after the other: they look at the containers and processes of the whole machine.
        session.run("pytest", "tests/e2e", "tests/sandbox")


@nox.session(default=False)
def coverage(session: nox.Session) -> None:
    """What the tests reach, child processes included. Slow: every line of every child is counted."""
    _install(session, "tests")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Style, types, and the one-way imports."""
    _install(session, "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    session.run("lint-imports")
