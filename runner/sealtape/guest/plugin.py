"""The pytest plugin: options, markers and thin hooks. What they do is in `ledger`, `guard` and `session`."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sealtape.guest.ledger import Ledger

HOOKS = "sealtape-hooks"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sealtape", "sealtape: model calls answered from recordings")
    group.addoption("--sealtape-report", metavar="FILE", type=Path, help="write what each test asked to FILE, as JSON")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    # Before the first conftest is imported: what runs at import time is under the guard too.
    _start(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "faults(*what): failures that answer the test's first model calls, before what is recorded: "
        "HTTP status codes, or names like 'read_timeout'",
    )
    _start(config)  # where this plugin was loaded too late for the hook above


def _start(config: pytest.Config) -> None:
    """Begins the session, once, if the project uses sealtape. Until then the plugin is inert."""
    if config.pluginmanager.has_plugin(HOOKS):
        return
    # Imported here: a project that does not use sealtape pays for none of it.
    from sealtape import config as settings_of
    from sealtape.errors import SealtapeError

    try:
        # In a sandbox the host has chosen the project; an option of pytest (--rootdir) does not change it.
        root = config.invocation_params.dir if settings_of.in_guest() else config.rootpath
        settings = settings_of.load(root)
        if not settings.declared:
            return
        from sealtape.guest.ledger import Ledger

        ledger = Ledger(settings, report=getattr(config.known_args_namespace, "sealtape_report", None))
        ledger.open()
    except SealtapeError as error:
        raise pytest.UsageError(f"sealtape: {error}") from error
    config.add_cleanup(ledger.close)
    config.pluginmanager.register(Hooks(ledger), HOOKS)


class Hooks:
    """The hooks of a session."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def pytest_report_header(self) -> list[str]:
        return [f"sealtape: {self.ledger.header()}"]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self.ledger.test(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        with self.ledger.phase("setup"):
            try:
                self.ledger.inject([what for mark in item.iter_markers("faults") for what in mark.args])
            finally:
                yield  # pytest's own setup in any case, or its teardown would fail as well

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        with self.ledger.phase("call"):
            yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        with self.ledger.phase("teardown"):
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
        result = yield
        # Finalizers run last in, first out: this one comes just before the fixture's own.
        request.addfinalizer(self.ledger.renew_guard)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        owed = call.excinfo is not None and self.ledger.unforgivable(call.excinfo.value)
        if call.excinfo is not None and owed:
            call.excinfo = pytest.ExceptionInfo.from_exception(self.ledger.shortened(call.excinfo.value))
        report = yield
        if owed:
            # An expected failure is one of the application's. This is none, and would hide for good.
            report.outcome = "failed"
            vars(report).pop("wasxfail", None)
        self.ledger.attach(report)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Under xdist this runs where the workers' reports arrive, so it is here that they are counted.
        self.ledger.add(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return  # xdist's controller writes for its workers
        if self.ledger.finish() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = self.ledger.summary()
        if lines:
            terminalreporter.section("sealtape")
            for line in lines:
                terminalreporter.write_line(line)
