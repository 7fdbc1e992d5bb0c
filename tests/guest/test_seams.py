from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import httpx2
import pytest

from sealtape.cassette.model import FAILURES
from sealtape.errors import CassetteMiss
from sealtape.guest.seams._transport import EXCEPTIONS

if TYPE_CHECKING:
    from conftest import Tape

BACKENDS = ["asyncio", "trio"]


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def lib(request: pytest.FixtureRequest) -> Any:
    return request.param


def seen(response: Any) -> dict[str, Any]:
    return {
        "status": response.status_code,
        "reason": response.reason_phrase,
        "version": response.http_version,
        "headers": [(name, value) for name, value in response.headers.raw if name.lower() != b"set-cookie"],
        "body": response.content,
        "url": str(response.url),
        "history": [past.status_code for past in response.history],
    }


Ask = Callable[..., Any]


def sync_way(lib: Any) -> Ask:
    def ask(method: str, url: str, **more: Any) -> Any:
        timeout, follow = more.pop("timeout", 10), more.pop("follow_redirects", False)
        with lib.Client(timeout=timeout, follow_redirects=follow) as client:
            return client.request(method, url, **more)

    return ask


def async_way(lib: Any, backend: str) -> Ask:
    def ask(method: str, url: str, **more: Any) -> Any:
        timeout, follow = more.pop("timeout", 10), more.pop("follow_redirects", False)

        async def run() -> Any:
            async with lib.AsyncClient(timeout=timeout, follow_redirects=follow) as client:
                return await client.request(method, url, **more)

        return anyio.run(run, backend=backend)

    return ask


@pytest.fixture(params=["sync", *BACKENDS])
def ask(lib: Any, request: pytest.FixtureRequest) -> Ask:
    return sync_way(lib) if request.param == "sync" else async_way(lib, request.param)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/json", 200),
        ("GET", "/bytes", 200),
        ("GET", "/events", 200),
        ("GET", "/gzip", 200),
        ("GET", "/gzip-anyway", 200),
        ("GET", "/redirect", 302),
        ("GET", "/cookies", 200),
        ("HEAD", "/json", 200),
        ("HEAD", "/gzip-anyway", 200),
        ("DELETE", "/empty", 204),
        ("GET", "/teapot", 418),
        ("GET", "/latin", 200),
        ("POST", "/echo", 200),
    ],
)
def test_an_answer_is_replayed_as_it_was(tape: Tape, ask: Ask, method: str, path: str, status: int) -> None:
    live, played = tape.twice(lambda: seen(ask(method, tape.origin.url + path)))
    assert live["status"] == status
    assert played == live


def test_duplicate_headers_and_cookies_come_back(tape: Tape, lib: Any) -> None:
    def use() -> Any:
        with lib.Client() as client:
            response = client.get(f"{tape.origin.url}/cookies")
            return response.headers.get_list("x-two"), [n for n, _ in response.headers.raw], sorted(client.cookies)

    live, played = tape.twice(use)
    assert played == live
    assert live[0] == ["1", "2"]
    assert live[1].count(b"Set-Cookie") == live[1].count(b"set-cookie") == 1
    assert live[2] == ["a", "b"]


def test_compression_is_declined_so_that_recordings_can_be_read(tape: Tape, lib: Any) -> None:
    with tape.session("record"):
        assert sync_way(lib)("GET", f"{tape.origin.url}/gzip", headers={"accept-encoding": "gzip"}).text == "plain text"
    assert tape.origin.asked[0].headers["accept-encoding"] == "identity"
    assert tape.documents()[0]["takes"][0]["text"] == "plain text"


def test_a_redirect_is_recorded_hop_by_hop(tape: Tape, ask: Ask) -> None:
    live, played = tape.twice(lambda: seen(ask("GET", f"{tape.origin.url}/redirect", follow_redirects=True)))
    assert played == live
    assert (live["history"], live["url"]) == ([302], f"{tape.origin.url}/json")
    assert len(tape.documents()) == 2


def failure(ask: Ask, *args: Any, **more: Any) -> tuple[str, str]:
    try:
        ask(*args, **more)
    except Exception as error:  # noqa: BLE001 -- its class is what is compared
        return type(error).__name__, f"{error} of {error.request.url}"  # type: ignore[attr-defined]
    return "no error", ""


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/slow", "ReadTimeout"),
        ("/cut", "RemoteProtocolError"),
        ("/cut-stream", "RemoteProtocolError"),
        ("/garbage", "RemoteProtocolError"),
    ],
)
def test_a_broken_transport_is_the_same_exception(tape: Tape, ask: Ask, path: str, error: str) -> None:
    timeout = 0.2 if path == "/slow" else 10
    live, played = tape.twice(lambda: failure(ask, "GET", tape.origin.url + path, timeout=timeout))
    assert live[0] == error
    assert played == live


def test_a_refused_connection_is_the_same_exception(tape: Tape, ask: Ask) -> None:
    tape.origin.stop()
    live, played = tape.twice(lambda: failure(ask, "GET", f"{tape.origin.url}/json"))
    assert live[0] == "ConnectError"
    assert played == live


def test_every_failure_has_its_exception_in_both_libraries(lib: Any) -> None:
    assert set(EXCEPTIONS) == set(FAILURES)
    for name in EXCEPTIONS.values():
        assert issubclass(getattr(lib, name), lib.TransportError)


# -- streams ----------------------------------------------------------------------------------


def read(response: Any, way: str) -> list[Any]:
    return list(getattr(response, f"iter_{way}")())


async def aread(response: Any, way: str) -> list[Any]:
    return [piece async for piece in getattr(response, f"aiter_{way}")()]


def stream(lib: Any, url: str, way: str) -> list[Any]:
    with lib.Client() as client, client.stream("GET", url) as response:
        return read(response, way)


def astream(lib: Any, url: str, way: str, backend: str) -> list[Any]:
    async def run() -> list[Any]:
        async with lib.AsyncClient() as client, client.stream("GET", url) as response:
            return await aread(response, way)

    return anyio.run(run, backend=backend)


@pytest.mark.parametrize("way", ["raw", "bytes", "text", "lines"])
@pytest.mark.parametrize("kind", ["sync", *BACKENDS])
def test_a_stream_is_replayed_in_its_pieces(tape: Tape, lib: Any, way: str, kind: str) -> None:
    url = f"{tape.origin.url}/events"
    live, played = tape.twice(lambda: stream(lib, url, way) if kind == "sync" else astream(lib, url, way, kind))
    assert played == live
    if way == "raw":
        assert live == [b"data: on", b"e\n\ndata: \xf0\x9f", b"\x98\x80\n\n", b"data: [DONE]\n\n"]
    if way == "lines":
        assert live == ["data: one", "", "data: \U0001f600", "", "data: [DONE]", ""]


def test_a_stream_that_breaks_gives_its_beginning_and_then_the_exception(tape: Tape, lib: Any) -> None:
    def use() -> Any:
        pieces = []
        with lib.Client() as client, client.stream("GET", f"{tape.origin.url}/cut-stream") as response:
            try:
                for piece in response.iter_raw():
                    pieces.append(piece)  # noqa: PERF402 -- what came before the exception counts
            except lib.TransportError as error:
                return pieces, type(error).__name__
        return pieces, "no error"

    live, played = tape.twice(use)
    assert live == ([b"data: one\n\n", b"data: two\n\n"], "RemoteProtocolError")
    assert played == live


# Under trio both libraries leave generators of their own behind, with and without a session.
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
@pytest.mark.parametrize("kind", ["sync", *BACKENDS])
def test_a_stream_that_is_left_early_is_partial_and_replays(tape: Tape, lib: Any, kind: str) -> None:
    url = f"{tape.origin.url}/many"

    def use() -> bytes:
        with lib.Client() as client, client.stream("GET", url) as response:
            return bytes(next(response.iter_raw()))

    async def use_async() -> bytes:
        async with lib.AsyncClient() as client, client.stream("GET", url) as response:
            pieces = response.aiter_raw()
            try:
                return bytes(await anext(pieces))
            finally:
                await pieces.aclose()

    live, played = tape.twice(use if kind == "sync" else lambda: anyio.run(use_async, backend=kind))
    assert played == live == b"data: 0\n\n"
    (document,) = tape.documents()
    assert document["takes"][0]["partial"] is True


def test_a_stream_that_is_never_read_does_no_harm(tape: Tape, lib: Any) -> None:
    def use() -> int:
        with lib.Client() as client, client.stream("GET", f"{tape.origin.url}/many") as response:
            return int(response.status_code)

    live, played = tape.twice(use)
    assert played == live == 200


# -- requests ---------------------------------------------------------------------------------


def test_an_upload_matches_whatever_its_boundary(tape: Tape, ask: Ask) -> None:
    def upload(content: bytes = b"\x00\xff audio") -> int:
        files = {"file": ("a.wav", content, "audio/wav")}
        return int(ask("POST", f"{tape.origin.url}/echo", files=files, data={"model": "whisper"}).status_code)

    live, played = tape.twice(upload)
    assert played == live == 200
    assert len(tape.origin.asked) == 1
    assert b"audio" in tape.origin.asked[0].body
    with tape.session("replay"), pytest.raises(CassetteMiss):
        upload(b"\x00\xff other")


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_body_that_comes_from_a_generator_goes_out_once_and_whole(tape: Tape, lib: Any, kind: str) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"prompt": '
        yield b'"Hi"}'

    async def apieces() -> AsyncIterator[bytes]:
        for piece in pieces():
            yield piece

    def use() -> bytes:
        headers = {"content-type": "application/json"}
        url = f"{tape.origin.url}/echo"
        if kind == "sync":
            return bytes(sync_way(lib)("POST", url, content=pieces(), headers=headers).content)
        return bytes(async_way(lib, kind)("POST", url, content=apieces(), headers=headers).content)

    live, played = tape.twice(use)
    assert played == live == b'{"prompt": "Hi"}'
    framing = {"transfer-encoding", "content-length"}.intersection(tape.origin.asked[0].headers)
    assert framing == {"content-length"}
    assert tape.documents()[0]["question"]["body"] == {"prompt": "Hi"}


@pytest.mark.parametrize(
    "more",
    [
        {"json": {"a": "\u2019"}},
        {"data": {"a": "1", "b": ["2", "3"]}},
        {"content": b"\x00\xff"},
        {"params": {"b": "2", "a": "1"}},
        {"headers": {"X-Name": b"caf\xe9"}},
    ],
)
def test_any_request_goes_out_as_it_was_and_is_found_again(tape: Tape, ask: Ask, more: dict[str, Any]) -> None:
    live, played = tape.twice(lambda: seen(ask("POST", f"{tape.origin.url}/echo", **more)))
    assert played == live
    assert live["status"] == 200
    assert live["body"] == tape.origin.asked[0].body


def test_the_application_sees_the_truth_and_the_disk_does_not(tape: Tape, ask: Ask) -> None:
    headers = {"authorization": f"Bearer {tape.key}"}
    live, played = tape.twice(lambda: ask("GET", f"{tape.origin.url}/whoami", headers=headers).text)
    assert live == f"you sent Bearer {tape.key}"
    assert played == "you sent Bearer REDACTED"
    assert all(tape.key not in path.read_text() for path in tape.folder.rglob("*.json"))


def test_a_miss_leaves_through_any_client(tape: Tape, ask: Ask) -> None:
    with tape.session("replay"), pytest.raises(CassetteMiss, match="no recording for GET"):
        ask("GET", f"{tape.origin.url}/json")
    assert tape.origin.asked == []


def test_many_at_once_get_their_own_answers(tape: Tape, lib: Any) -> None:
    async def run() -> list[bytes]:
        async with lib.AsyncClient(timeout=30) as client:
            url = f"{tape.origin.url}/echo"
            answers = await asyncio.gather(*(client.post(url, content=str(number)) for number in range(50)))
            return [answer.content for answer in answers]

    live, played = tape.twice(lambda: asyncio.run(run()))
    assert played == live == [str(number).encode() for number in range(50)]


# -- what is left alone -----------------------------------------------------------------------


def test_transports_that_open_no_connection_are_left_alone(tape: Tape, lib: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await receive()
        await send({"type": "http.response.start", "status": 203, "headers": []})
        await send({"type": "http.response.body", "body": b"from the app"})

    async def run() -> int:
        async with lib.AsyncClient(transport=lib.ASGITransport(app=app)) as client:
            return int((await client.get(f"{tape.origin.url}/json")).status_code)

    with tape.session("replay"):
        assert asyncio.run(run()) == 203
        mock = lib.MockTransport(lambda _: lib.Response(204))
        with lib.Client(transport=mock) as client:
            assert client.get("https://api.example.com/").status_code == 204


def test_a_server_that_the_tests_start_is_not_intercepted(tape: Tape, ask: Ask) -> None:
    with tape.session("replay", grants={}):
        assert ask("GET", f"{tape.origin.url}/json").json()["n"] == 1
    assert len(tape.origin.asked) == 1
    assert not tape.folder.exists()


def test_without_a_session_and_in_mode_off_nothing_is_intercepted(tape: Tape, ask: Ask) -> None:
    with tape.session("off"):
        assert ask("GET", f"{tape.origin.url}/json").status_code == 200
    assert not tape.folder.exists()


def test_an_ignored_host_is_answered_locally_in_both_modes(tape: Tape, ask: Ask) -> None:
    live, played = tape.twice(
        lambda: ask("POST", "https://traces.example.com/v1", json={"a": 1}).json(), ignore_hosts=["traces.example.com"]
    )
    assert live == played == {}
    assert tape.documents() == []


def test_a_transport_that_wraps_the_librarys_is_caught_below(tape: Tape, lib: Any) -> None:
    class Wrapping(lib.BaseTransport):  # type: ignore[misc]
        def __init__(self) -> None:
            self.inner = lib.HTTPTransport()
            self.used = 0

        def handle_request(self, request: Any) -> Any:
            self.used += 1
            return self.inner.handle_request(request)

        def close(self) -> None:
            self.inner.close()

    def use() -> tuple[int, int]:
        transport = Wrapping()
        with lib.Client(transport=transport) as client:
            return client.get(f"{tape.origin.url}/json").status_code, transport.used

    live, played = tape.twice(use)
    assert played == live == (200, 1)


def test_a_subclass_of_the_librarys_transport_is_caught_and_recorded_once(tape: Tape, lib: Any) -> None:
    class Own(lib.HTTPTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            return super().handle_request(request)

    def use() -> int:
        with lib.Client(mounts={"http://": Own()}) as client:
            return int(client.get(f"{tape.origin.url}/json").status_code)

    live, played = tape.twice(use)
    assert played == live == 200
    assert len(tape.documents()[0]["takes"]) == 1


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_library_is_caught_whenever_it_is_imported(tape: Tape, library: str, when: str) -> None:
    program = f"""
import importlib, importlib.util, sys
import sealtape
lib = importlib.import_module({library!r}) if {when!r} == "before" else None
with sealtape.session(cassettes={str(tape.folder)!r}):
    assert lib or {library!r} not in sys.modules
    lib = lib or importlib.import_module({library!r})
    assert type(lib.__spec__.loader).__name__ == type(lib.__loader__).__name__ == "SourceFileLoader"
    try:
        lib.get("https://api.example.com/v1")
    except sealtape.CassetteMiss as miss:
        print("missed", miss.key)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("missed ")


def test_imports_that_fail_still_fail() -> None:
    with pytest.raises(ModuleNotFoundError, match="httpx3"):
        importlib.import_module("httpx3")
