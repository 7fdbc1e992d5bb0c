"""The plugin as a project's own pytest run has it: each test runs a project of its own."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

import sealtape
from sealtape.config import GuestLink

if TYPE_CHECKING:
    from conftest import Origin, Wire

pytest_plugins = ["pytester"]

OUTSIDE = "192.0.2.1"  # TEST-NET-1: an address that belongs to nobody
MISS = "sealtape.errors.CassetteMiss: no recording for call('m')"


class Project:
    """A project that uses sealtape, with "Hi" answered by "Hello"."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.table("[tool.sealtape]")
        self.say("Hi", "Hello")

    def table(self, text: str) -> None:
        (self.path / "pyproject.toml").write_text(text + "\n", encoding="utf-8")

    def say(self, prompt: str, text: str) -> str:
        key = sealtape.key_for("m", prompt, 0.0)
        folder = self.path / "cassettes"
        folder.mkdir(exist_ok=True)
        document = {"key": key, "model": "m", "text": text, "usage": {"total_tokens": 3}, "recorded_at": "2025-01-01"}
        (folder / f"{key}.json").write_text(json.dumps(document))
        return key

    def run(self, *args: str, test: str = "", conftest: str = "", name: str = "test_it.py") -> pytest.RunResult:
        if test:
            (self.path / name).write_text(f"import pytest, sealtape, socket\n{test}\n", encoding="utf-8")
        if conftest:
            (self.path / "conftest.py").write_text(f"import pytest, sealtape, socket\n{conftest}\n", encoding="utf-8")
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:randomly", "-rA", *args)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("CASSETTE_MODE", "CASSETTE_DIR", "SEALTAPE_GUEST", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    return Project(pytester)


def summary(result: pytest.RunResult) -> list[str]:
    """The closing lines of sealtape."""
    lines = result.outlines
    starts = [number for number, line in enumerate(lines) if line.strip("= ") == "sealtape"]
    if not starts:
        return []
    rest = lines[starts[-1] + 1 :]
    end = next(number for number, line in enumerate(rest) if line.startswith("==="))
    return rest[:end]


def first_error(result: pytest.RunResult) -> str:
    """The first line that pytest marks as the error."""
    return next(line[1:].strip() for line in result.outlines if line.startswith("E "))


# -- when it is there -------------------------------------------------------------------------


def test_without_a_table_and_without_a_variable_it_does_nothing(project: Project) -> None:
    project.table("[project]\nname = 'x'\nversion = '1'")
    result = project.run(
        test="""
import sys
from sealtape.cassette import deck
def test_it():
    assert deck.current() is None
    assert "sealtape.guest.ledger" not in sys.modules
    assert "sealtape.guest.guard" not in sys.modules
"""
    )
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("sealtape: *")
    assert summary(result) == []


@pytest.mark.parametrize("variable", ["CASSETTE_MODE", "CASSETTE_DIR"])
def test_a_variable_switches_it_on(project: Project, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    project.table("")
    monkeypatch.setenv(variable, {"CASSETTE_MODE": "replay", "CASSETTE_DIR": "cassettes"}[variable])
    result = project.run(test="def test_it(): assert sealtape.call('m', 'Hi') == 'Hello'")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["sealtape: replay, 1 cassettes in cassettes; not sealed: *"])


@pytest.mark.parametrize(
    ("mode", "header"),
    [
        ("replay", "sealtape: replay, 1 cassettes in cassettes; not sealed: sockets are blocked in Python only *"),
        ("record", "sealtape: record, 1 cassettes in cassettes; not sealed, with your own key and network"),
        ("off", "sealtape: off: calls go out live, and nothing is recorded"),
    ],
)
def test_the_header_says_what_kind_of_run_it_is(
    project: Project, monkeypatch: pytest.MonkeyPatch, mode: str, header: str
) -> None:
    monkeypatch.setenv("CASSETTE_MODE", mode)
    result = project.run(test="def test_it(): pass")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([header])
    assert summary(result) == []


@pytest.mark.parametrize(
    ("table", "mode", "said"),
    [
        ("[tool.sealtape]", "live", "ERROR: sealtape: CASSETTE_MODE is 'live'; it is one of replay, record, off"),
        ("[tool.sealtape]\ntimeot = 1", "", "ERROR: sealtape: *no key 'timeot'"),
    ],
)
def test_a_wrong_setting_is_a_usage_error(
    project: Project, monkeypatch: pytest.MonkeyPatch, table: str, mode: str, said: str
) -> None:
    project.table(table)
    if mode:
        monkeypatch.setenv("CASSETTE_MODE", mode)
    result = project.run(test="def test_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
    assert "Traceback" not in result.stderr.str()


# -- misses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "    try: sealtape.call('m', 'new')\n    except: pass",
        "    try: sealtape.call('m', 'new')\n    except BaseException: pass\n    assert 1 == 2",
        "    try: sealtape.call('m', 'new')\n    except BaseException: pytest.skip('no model')",
        "    try: sealtape.call('m', 'new')\n    except Exception: pass",
        "    with pytest.raises(BaseException):\n        sealtape.call('m', 'new')",
        """    import threading
    def work():
        try:
            sealtape.call('m', 'new')
        except BaseException:
            pass
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()""",
        """    import anyio
    async def work():
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, sealtape.call, 'm', 'new')
    anyio.run(work)""",
    ],
)
def test_a_miss_cannot_be_swallowed(project: Project, body: str) -> None:
    result = project.run(test=f"def test_it():\n{body}\ndef test_other(): assert sealtape.call('m', 'Hi') == 'Hello'")
    result.assert_outcomes(passed=1, failed=1)
    assert first_error(result) == MISS
    assert "played 1 · missed 1" in summary(result)
    assert "to record what is missing: sealtape record -- test_it.py::test_it" in summary(result)


def test_a_miss_in_an_sdk_is_shown_first_and_without_its_frames(project: Project) -> None:
    result = project.run(
        test="""
import openai
def ask():
    with openai.OpenAI(api_key="sk-x", base_url="https://api.example.com/v1", max_retries=5) as client:
        try:
            return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "new"}])
        except Exception:
            return "fallback"
def test_it():
    assert ask() == "fallback"
"""
    )
    result.assert_outcomes(failed=1)
    assert first_error(result).startswith("sealtape.errors.CassetteMiss: no recording for POST https://api.example.com")
    result.stdout.no_fnmatch_line("*site-packages*")
    result.stdout.fnmatch_lines(["    def ask():", "test_it.py:7: CassetteMiss"])


def test_a_miss_in_a_unittest_test_case_fails_it(project: Project) -> None:
    result = project.run(
        test="""
import unittest
class TestIt(unittest.TestCase):
    def test_swallowed(self):
        try:
            sealtape.call('m', 'new')
        except BaseException:
            pass
    def test_open(self):
        sealtape.call('m', 'new')
    def test_good(self):
        self.assertEqual(sealtape.call('m', 'Hi'), 'Hello')
"""
    )
    result.assert_outcomes(passed=1, failed=2)


@pytest.mark.parametrize(
    ("fixture", "errors", "failed"),
    [
        ("@pytest.fixture\ndef it():\n    swallow()\n    yield", 1, 0),
        ("@pytest.fixture\ndef it():\n    yield\n    swallow()", 1, 0),
        ("@pytest.fixture(scope='session')\ndef it():\n    sealtape.call('m', 'new')", 1, 0),
    ],
)
def test_a_miss_in_a_fixture_is_an_error(project: Project, fixture: str, errors: int, failed: int) -> None:
    swallow = """
def swallow():
    try:
        sealtape.call('m', 'new')
    except BaseException:
        pass
"""
    result = project.run(test=f"{swallow}\n{fixture}\ndef test_it(it): pass")
    outcomes = result.parseoutcomes()
    assert (outcomes.get("errors", 0), outcomes.get("failed", 0)) == (errors, failed)
    result.stdout.fnmatch_lines([f"E*{MISS}"])


@pytest.mark.parametrize(
    "mark",
    [
        "@pytest.mark.xfail",
        "@pytest.mark.xfail(strict=True)",
        "@pytest.mark.xfail(raises=BaseException)",
    ],
)
def test_xfail_does_not_hide_a_miss(project: Project, mark: str) -> None:
    result = project.run(
        test=f"{mark}\ndef test_it(): sealtape.call('m', 'new')\n@pytest.mark.xfail\ndef test_other(): assert 1 == 2"
    )
    result.assert_outcomes(failed=1, xfailed=1)


def test_a_recording_that_cannot_be_read_fails_the_test_that_swallows_it(project: Project) -> None:
    key = project.say("Hi", "Hello")
    (project.path / "cassettes" / f"{key}.json").write_text("{")
    result = project.run(
        test="def test_it():\n    try:\n        sealtape.call('m', 'Hi')\n    except Exception:\n        pass"
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*is not valid JSON*"])


def test_many_missing_tests_get_one_command(project: Project) -> None:
    result = project.run(test="@pytest.mark.parametrize('n', range(5))\ndef test_it(n): sealtape.call('m', f'new {n}')")
    result.assert_outcomes(failed=5)
    assert summary(result)[-1] == "to record what is missing: sealtape record -- --missing"


def test_what_passes_is_left_as_it_is(project: Project) -> None:
    result = project.run(
        "-v",
        test="""
import asyncio
def test_fact(): assert [sealtape.call('m', 'Hi') for _ in range(3)] == ['Hello'] * 3
def test_asyncio(): assert asyncio.run(asyncio.sleep(0, 'done')) == 'done'
def test_skip(): pytest.skip('not today')
def test_capture(capsys):
    print('x')
    assert capsys.readouterr().out == 'x\\n'
""",
    )
    result.assert_outcomes(passed=3, skipped=1)
    assert summary(result) == ["played 3 · missed 0"]


# -- faults -----------------------------------------------------------------------------------

FAULTY = """
import httpx
def status():
    try:
        return httpx.post("https://api.example.com/v1", json={}, timeout=5).status_code
    except httpx.TransportError as error:
        return type(error).__name__
"""


def test_faults_come_first_and_only_to_their_own_test(project: Project) -> None:
    result = project.run(
        test=f"""{FAULTY}
@pytest.mark.faults(429, "read_timeout", 503)
def test_it(): assert [status() for _ in range(3)] == [429, "ReadTimeout", 503]
@pytest.mark.faults("connect_error")
class TestClass:
    def test_one(self): assert status() == "ConnectError"
    def test_two(self): assert status() == "ConnectError"
@pytest.mark.faults(500)
def test_unused(): assert True
def test_free(): assert sealtape.call('m', 'Hi') == 'Hello'
@pytest.mark.faults("read_timeout")
def test_call():
    with pytest.raises(sealtape.CallError, match="read_timeout"):
        sealtape.call('m', 'Hi')
    assert sealtape.call('m', 'Hi') == 'Hello'
"""
    )
    result.assert_outcomes(passed=6)


def test_a_fault_that_is_not_known_is_an_error_of_its_test_alone(project: Project) -> None:
    result = project.run(test="@pytest.mark.faults('boredom')\ndef test_it(): pass\ndef test_other(): pass")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["E*faults: 'boredom' is not known*", "*give an HTTP status code, or one of *"])


def test_the_marker_is_registered(project: Project) -> None:
    result = project.run("--strict-markers", test="@pytest.mark.faults\ndef test_it(): pass\ndef test_other(): pass")
    result.assert_outcomes(passed=2)
    project.run("--markers").stdout.fnmatch_lines(["@pytest.mark.faults(*what):*"])


# -- the guard --------------------------------------------------------------------------------

WAYS = {
    f"socket.create_connection(('{OUTSIDE}', 443))": f"connect {OUTSIDE}:443",
    f"socket.socket().connect_ex(('{OUTSIDE}', 443))": f"connect {OUTSIDE}:443",
    f"socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('{OUTSIDE}', 53))": f"sendto {OUTSIDE}:53",
    "socket.getaddrinfo('api.example.com', 443)": "getaddrinfo api.example.com:443",
    "socket.gethostbyname_ex('api.example.com')": "gethostbyname api.example.com",
    "socket.socket(socket.AF_VSOCK)": "socket address family 40",
}


def test_attempts_are_listed_with_test_phase_and_place(project: Project) -> None:
    tests = "\n".join(
        f"def test_{number}():\n    with pytest.raises(RuntimeError): {way}" for number, way in enumerate(WAYS)
    )
    result = project.run(test=tests)
    result.assert_outcomes(passed=len(WAYS))
    assert summary(result)[0] == f"played 0 · missed 0 · blocked {len(WAYS)}"
    assert summary(result)[1:] == [
        f"blocked  test_it.py::test_{number} (call)  {where}" for number, where in enumerate(WAYS.values())
    ]


def test_an_attempt_that_is_not_caught_fails_where_it_was_made(project: Project) -> None:
    result = project.run(test=f"def test_it(): socket.create_connection(('{OUTSIDE}', 443))")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*blocked by sealtape: test_it.py::test_it (call) tried to leave this machine*"])


@pytest.mark.parametrize(("blocked", "outcome"), [("report", {"passed": 1}), ("fail", {"failed": 1})])
def test_a_swallowed_attempt_fails_the_test_where_that_is_asked_for(
    project: Project, blocked: str, outcome: dict[str, int]
) -> None:
    project.table(f'[tool.sealtape]\nblocked = "{blocked}"')
    result = project.run(
        test="def test_it():\n    try: socket.getaddrinfo('api.example.com', 1)\n    except Exception: pass"
    )
    result.assert_outcomes(**outcome)


def test_the_guard_is_on_from_the_first_conftest_to_the_last_teardown(project: Project) -> None:
    attempt = f"""
def attempt():
    try:
        socket.create_connection(('{OUTSIDE}', 443), timeout=1).close()
        return "open"
    except OSError as error:
        return f"left: {{error}}"
    except RuntimeError:
        return "blocked"
"""
    result = project.run(
        conftest=f"""{attempt}
AT_IMPORT = attempt()
@pytest.fixture(scope="session", autouse=True)
def whole():
    assert attempt() == "blocked"
    yield
    assert attempt() == "blocked"
@pytest.fixture
def one():
    assert attempt() == "blocked"
    yield
    assert attempt() == "blocked"
def pytest_collection_modifyitems():
    assert AT_IMPORT == attempt() == "blocked"
def pytest_runtest_logfinish():
    assert attempt() == "blocked"
def pytest_sessionfinish():
    assert attempt() == "blocked"
""",
        test="def test_it(one): pass",
    )
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    phases = [line.partition("  ")[2].rpartition("  ")[0] for line in summary(result)[1:]]
    assert phases == [
        "(outside of a test) (start)",
        "(outside of a test) (start)",
        "test_it.py::test_it (setup)",
        "test_it.py::test_it (setup)",
        *["test_it.py::test_it (teardown)"] * 3,
        "(outside of a test) (between tests)",
    ]


def test_a_server_of_the_tests_own_works(project: Project) -> None:
    result = project.run(
        test="""
import threading, urllib.request, http.server, httpx
@pytest.fixture(scope="module")
def url():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://localhost:{server.server_address[1]}"
        server.shutdown()
        thread.join()
def test_urllib(url):
    with urllib.request.urlopen(url) as response: assert response.status == 200
def test_httpx(url): assert httpx.get(url).status_code == 200
"""
    )
    result.assert_outcomes(passed=2)
    assert summary(result) == []


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        ((), "@pytest.mark.enable_socket"),
        ((), f"@pytest.mark.allow_hosts(['{OUTSIDE}'])"),
        ((f"--allow-hosts={OUTSIDE}",), ""),
        (("--force-enable-socket",), ""),
        (("--disable-socket",), "@pytest.mark.usefixtures('socket_enabled')"),
    ],
)
def test_what_opens_pytest_socket_does_not_open_this(project: Project, options: tuple[str, ...], mark: str) -> None:
    result = project.run(
        *options, test=f"{mark}\ndef test_it():\n    with pytest.raises(RuntimeError): {next(iter(WAYS))}"
    )
    result.assert_outcomes(passed=1)
    assert len([line for line in summary(result) if line.startswith("blocked")]) == 1


def test_where_warnings_are_errors_there_are_none_of_ours(project: Project) -> None:
    project.say("Bye", "Goodbye")
    tests = "\n".join(
        f"def test_{number}():\n    with pytest.raises(RuntimeError): {way}"
        for number, way in enumerate(list(WAYS)[::3])
    )
    result = project.run(
        "-W",
        "error",
        "-p",
        "no:asyncio",  # it warns of a setting of its own
        test=f"""{tests}
{FAULTY}
import asyncio
def test_played(): assert sealtape.call('m', 'Hi') == 'Hello'
def test_swallowed():
    with pytest.raises(BaseException): status()
def test_client():
    async def ask():
        async with httpx.AsyncClient() as client:
            await client.get("https://api.example.com/")
    with pytest.raises(sealtape.CassetteMiss): asyncio.run(ask())
""",
    )
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.no_fnmatch_line("*ResourceWarning*")
    assert "warning" not in result.stdout.lines[-1]
    assert summary(result)[0] == "played 1 · missed 2 · blocked 2"


def test_sessions_within_tests_and_runs_within_runs_leave_the_guard_on(project: Project) -> None:
    result = project.run(
        "-p",
        "pytester",
        test=f"""
def blocked():
    with pytest.raises(RuntimeError): socket.getaddrinfo('api.example.com', 443)
    return True
def test_session():
    with sealtape.session():
        assert blocked()
    assert blocked()
def test_run(pytester):
    pytester.makepyprojecttoml("[tool.sealtape]")
    pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
    with pytest.raises(RuntimeError): socket.create_connection(('{OUTSIDE}', 443))
    assert blocked()
""",
    )
    result.assert_outcomes(passed=2)


# -- recording, reports, workers --------------------------------------------------------------


@pytest.fixture
def model(origin: Origin, wire: Wire, project: Project, monkeypatch: pytest.MonkeyPatch) -> Origin:
    """A chat model on loopback that repeats what it is asked, and a project that may record it."""

    def chat(_: Origin, asked: Any) -> bytes:
        text = asked.json()["messages"][0]["content"].upper()
        return wire.json({"choices": [{"message": {"content": text}}], "usage": {"total_tokens": 3}})

    origin.routes["/v1/chat/completions"] = chat
    project.table(
        f'[tool.sealtape]\nchat_url = "{origin.url}/v1"\n[tool.sealtape.grants.local]\nhosts = ["{origin.url}"]'
    )
    monkeypatch.setenv("CASSETTE_MODE", "record")
    return origin


def cassettes(project: Project) -> set[str]:
    return {path.stem for path in (project.path / "cassettes").glob("*.json")}


def keys(*prompts: str) -> set[str]:
    return {sealtape.key_for("m", prompt, 0.0) for prompt in prompts}


@pytest.mark.usefixtures("model")
def test_recording_keeps_what_passing_tests_asked(project: Project) -> None:
    result = project.run(
        test="""
def test_good(): assert sealtape.call('m', 'good') == 'GOOD'
def test_bad(): assert sealtape.call('m', 'bad') == 'x'
@pytest.fixture
def broken():
    yield
    assert sealtape.call('m', 'late') == 'x'
def test_teardown(broken): assert sealtape.call('m', 'early') == 'EARLY'
@pytest.mark.xfail
def test_expected():
    sealtape.call('m', 'expected')
    assert 1 == 2
def test_skipped():
    sealtape.call('m', 'skipped')
    pytest.skip('later')
"""
    )
    result.assert_outcomes(passed=2, failed=1, errors=1, xfailed=1, skipped=1)
    assert cassettes(project) == keys("Hi", "good", "expected", "skipped")


@pytest.mark.parametrize("order", ["bad, good", "good, bad"])
def test_a_question_that_a_failing_and_a_passing_test_share_is_kept(
    project: Project, model: Origin, order: str
) -> None:
    tests = {
        "bad": "def test_bad(): assert sealtape.call('m', 'shared') == 'x'",
        "good": "def test_good(): assert sealtape.call('m', 'shared') == 'SHARED'",
    }
    result = project.run(test="\n".join(tests[name] for name in order.split(", ")))
    result.assert_outcomes(passed=1, failed=1)
    assert len(model.asked) == 1
    assert cassettes(project) == keys("Hi", "shared")


def test_a_failing_test_leaves_the_old_recording(project: Project, model: Origin) -> None:
    project.say("shared", "OLD")
    before = {path: path.read_bytes() for path in (project.path / "cassettes").iterdir()}
    project.run(test="def test_it(): assert sealtape.call('m', 'shared') == 'x'").assert_outcomes(failed=1)
    assert len(model.asked) == 1
    assert {path: path.read_bytes() for path in (project.path / "cassettes").iterdir()} == before


@pytest.mark.usefixtures("model")
def test_a_recording_with_a_secret_fails_its_test(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-mine-0123456789")
    result = project.run(test="def test_it(): sealtape.call('m', 'my key is sk-of-mine-0123456789')")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*SecretError: the recording of call('m') would carry a secret: OPENAI_API_KEY at *"])
    assert cassettes(project) == keys("Hi")


TESTS = """
@pytest.mark.parametrize('n', range(6))
def test_played(n): assert sealtape.call('m', 'Hi') == 'Hello'
def test_missed(): sealtape.call('m', 'new')
def test_blocked():
    with pytest.raises(RuntimeError): socket.getaddrinfo('api.example.com', 443)
"""


def test_workers_give_the_same_summary_and_report(project: Project) -> None:
    results, reports = [], []
    for number, options in enumerate([(), ("-n", "2")]):
        path = project.path / f"report-{number}.json"
        results.append(project.run(*options, f"--sealtape-report={path}", test=TESTS))
        reports.append(json.loads(path.read_text()))
        results[-1].assert_outcomes(passed=7, failed=1)
    assert summary(results[0]) == summary(results[1])
    assert summary(results[0])[0] == "played 6 · missed 1 · blocked 1"
    assert reports[0] == reports[1]


def test_workers_record_what_one_process_would(project: Project, model: Origin) -> None:
    test = "@pytest.mark.parametrize('n', range(6))\ndef test_it(n): assert sealtape.call('m', f'q{n}') == f'Q{n}'"
    project.run("-n", "2", test=test).assert_outcomes(passed=6)
    assert cassettes(project) == keys("Hi", *(f"q{n}" for n in range(6)))
    assert len(model.asked) == 6


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_in_a_sandbox_the_host_is_told_once_what_became_of_each_test(
    project: Project, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    outbox, report = project.path / "outbox", project.path / "report.json"
    outbox.mkdir()
    monkeypatch.setenv("SEALTAPE_GUEST", GuestLink(engine="docker", report=report, outbox=outbox).to_json())
    result = project.run(
        *options,
        test="""
def test_good(): assert sealtape.call('m', 'good') == 'GOOD'
def test_bad(): assert sealtape.call('m', 'bad') == 'x'
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    if not options:
        result.stdout.fnmatch_lines(["sealtape: sealed by docker · record, 1 cassettes in cassettes"])
    journal = [json.loads(line) for line in (outbox / "journal.jsonl").read_text().splitlines()]
    assert sorted((line["test"], line["outcome"], line["refused"]) for line in journal) == [
        ("test_it.py::test_bad", "failed", False),
        ("test_it.py::test_good", "passed", False),
    ]
    assert {key for line in journal for key in line["keys"]} == keys("good", "bad")
    assert {path.stem for path in outbox.glob("*.json")} == keys("good", "bad")  # the host decides what it takes in
    assert cassettes(project) == keys("Hi")
    assert json.loads(report.read_text())["tests"]["test_it.py::test_good"]["recorded"] == [*keys("good")]


def test_the_report_says_what_each_test_asked(project: Project) -> None:
    unused = project.say("unused", "x")
    result = project.run("--sealtape-report", "out/report.json", test=TESTS)
    assert result.ret == 1
    report = json.loads((project.path / "out" / "report.json").read_text())
    assert {name: report[name] for name in ("version", "verdict", "mode", "unused", "tokens")} == {
        "version": 1,
        "verdict": None,
        "mode": "replay",
        "unused": [unused],
        "tokens": 3,
    }
    tests = report["tests"]
    assert set(tests) == {f"test_it.py::test_played[{n}]" for n in range(6)} | {
        "test_it.py::test_missed",
        "test_it.py::test_blocked",
    }
    assert tests["test_it.py::test_played[0]"] == {
        "outcome": "passed",
        "played": [*keys("Hi")],
        "recorded": [],
        "missed": [],
        "refused": [],
        "withheld": [],
        "unheard": [],
        "blocked": [],
    }
    (missed,) = tests["test_it.py::test_missed"]["missed"]
    assert (missed["key"], tests["test_it.py::test_missed"]["outcome"]) == (*keys("new"), "failed")
    (blocked,) = tests["test_it.py::test_blocked"]["blocked"]
    assert blocked == {
        "test": "test_it.py::test_blocked",
        "phase": "call",
        "host": "api.example.com",
        "port": 443,
        "way": "getaddrinfo",
    }


def test_keys_that_are_not_set_have_a_placeholder_and_a_real_one_stays(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "mine")
    result = project.run(
        test="""
import os, openai
def test_it():
    openai.OpenAI().close()
    assert os.environ["OPENAI_API_KEY"].startswith("sk-sealtape0")
    assert os.environ["ANTHROPIC_API_KEY"] == "mine"
"""
    )
    result.assert_outcomes(passed=1)


def test_this_process_can_still_reach_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()


# -- what happens outside of tests ------------------------------------------------------------


def test_a_miss_after_the_last_test_fails_the_run(project: Project) -> None:
    result = project.run(
        test="def test_it(): pass",
        conftest="""
def pytest_sessionfinish():
    try:
        sealtape.call('m', 'new')
    except BaseException:
        pass
""",
    )
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    assert any(line.startswith("missed   (outside of a test)") for line in summary(result))


def test_a_secret_that_stopped_a_write_is_not_shown_by_the_traceback(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASSETTE_MODE", "record")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-real-0123456789-abcdef")
    result = project.run(
        "--showlocals",
        test="""
from sealtape.cassette import deck as decks
from sealtape.cassette.model import Said
def test_it():
    deck = decks.current()
    question = deck.call_question('m', 'my key is ' + 'AKIA' + 'IOSFODNN7EXAMPLZ', 0.0, {})
    deck.answer(question).finish(Said(text='x'))
    del deck, question
""",
    )
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "would carry a secret" in text
    assert "withheld 1" in text
    assert "sk-real-0123456789" not in text
    assert "AKIAIOSFODNN7" not in text
