"""What goes out to a provider, and what comes back, through a real broker process."""

from __future__ import annotations

import json
import threading

from sealtape.broker.wire import KeyedGrant
from sealtape.config import Grant


def answer(body: bytes, *, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def test_the_placeholder_becomes_the_key_and_nothing_else_changes(broker, provider, grant):
    headers = {"user-agent": "acme/1", "accept-encoding": "gzip", "authorization": f"Bearer {grant.placeholder}"}
    got = broker.ask("POST", f"{provider.origin}/v1/chat?b=2&a=%20&c", headers=headers, content=b'{"x": 1}')

    assert (got.status_code, got.content, got.headers["sealtape-answer"]) == (200, b"hello", "live")
    asked = provider.asked[0]
    assert asked.line == "POST /v1/chat?b=2&a=%20&c HTTP/1.1"
    assert asked.body == b'{"x": 1}'
    assert sorted(asked.headers) == [
        ("accept", "*/*"),
        ("accept-encoding", "identity"),
        ("authorization", f"Bearer {grant.key}"),
        ("content-length", "8"),
        ("host", provider.origin.removeprefix("http://")),
        ("user-agent", "acme/1"),
    ]


def test_the_placeholder_is_exchanged_in_the_query_field_of_its_grant(start, provider, grant):
    gemini = Grant(name="g", origins=(provider.origin,), header="x-goog-api-key", prefix="", query="key")
    broker = start(KeyedGrant(grant=gemini, key=grant.key, placeholder=grant.placeholder))
    broker.ask("GET", f"{provider.origin}/v1?alt=sse&key={grant.placeholder}")
    broker.ask("GET", f"{provider.origin}/v1?key=AIza-my-own&alt=sse")
    assert [asked.line for asked in provider.asked] == [
        "GET /v1?alt=sse&key=sk-the-real-key%2Fwith%2Bodd%3Dchars HTTP/1.1",
        "GET /v1?key=sealtape-invalid-key&alt=sse HTTP/1.1",
    ]


def test_another_credential_becomes_an_invalid_one(broker, provider):
    headers = {
        "authorization": "Basic bXk6b3du",
        "x-api-key": "my-own",
        "cookie": "session=my-own",
        "proxy-authorization": "Basic bXk6b3du",
    }
    broker.ask("GET", f"{provider.origin}/v1?api_key=my-own", headers=headers)
    asked = provider.asked[0]
    assert asked.header("authorization") == "Bearer sealtape-invalid-key"
    assert asked.header("x-api-key") == "sealtape-invalid-key"
    assert asked.header("cookie") is None
    assert asked.header("proxy-authorization") is None
    assert asked.line == "GET /v1?api_key=sealtape-invalid-key HTTP/1.1"


def test_a_call_without_a_credential_gets_none(broker, provider):
    broker.ask("GET", f"{provider.origin}/v1")
    assert provider.asked[0].header("authorization") is None


def test_a_server_without_a_key_gets_no_credential_of_the_guest(start, provider, grant):
    local = KeyedGrant(grant=Grant(name="local", origins=(provider.origin,)))
    other = KeyedGrant(
        grant=Grant(name="acme", origins=("https://api.acme.test",)), key=grant.key, placeholder=grant.placeholder
    )
    broker = start(local, other)
    broker.ask("GET", f"{provider.origin}/v1", headers={"authorization": f"Bearer {grant.placeholder}"})
    assert provider.asked[0].header("authorization") == "Bearer sealtape-no-key"


def test_a_placeholder_in_the_wrong_place_is_refused(broker, provider, grant):
    for place, more in {
        "body": {"content": f'{{"key": "{grant.placeholder}"}}'},
        "header user-agent": {"headers": {"user-agent": grant.placeholder}},
    }.items():
        got = broker.ask("POST", provider.origin, **more)
        assert (got.status_code, got.headers["sealtape-answer"]) == (403, "refused")
        assert got.json()["reason"] == "credential"
        assert f"stands in the {place};" in got.json()["message"]
    for path in (f"/v1/{grant.placeholder}", "/v1/sk%2Dsealtape-placeholder"):
        assert "stands in the path;" in broker.ask("GET", provider.origin + path).json()["message"]
    assert provider.asked == []


def test_a_placeholder_for_another_host_is_refused(start, provider, grant):
    other = Grant(name="other", origins=("https://api.other.test",))
    broker = start(grant, KeyedGrant(grant=other, key="sk-the-other-key", placeholder="sk-sealtape-other"))
    got = broker.ask("POST", f"{provider.origin}/v1", headers={"authorization": "Bearer sk-sealtape-other"})
    assert got.json()["reason"] == "credential"
    assert "the grant 'other' stands in the header authorization of a call" in got.json()["message"]
    assert provider.asked == []


def test_a_real_key_that_is_known_in_the_sandbox_is_refused_and_not_repeated(broker, provider, grant):
    for more in ({"headers": {"authorization": f"Bearer {grant.key}"}}, {"content": grant.key.encode()}):
        got = broker.ask("POST", f"{provider.origin}/v1", **more)
        assert got.json()["reason"] == "credential"
        assert "real key" in got.json()["message"]
        assert grant.key not in got.text
    assert provider.asked == []


def test_what_no_grant_allows_is_refused_with_the_remedy(broker, provider):
    got = broker.ask("GET", "https://api.acme.test/v1")
    assert (got.status_code, got.headers["sealtape-answer"]) == (403, "refused")
    assert got.json() == {
        "reason": "host",
        "message": "No grant names https://api.acme.test. If the tests shall ask it, add to pyproject.toml:\n\n"
        '[tool.sealtape.grants.acme]\nhosts = ["api.acme.test"]\n',
    }
    assert broker.ask("DELETE", provider.origin).json()["reason"] == "method"
    assert broker.ask("CONNECT", provider.origin).json()["reason"] == "method"
    assert provider.asked == []


def test_a_connection_cannot_be_upgraded(broker, provider):
    got = broker.ask("GET", f"{provider.origin}/v1", headers={"connection": "Upgrade", "upgrade": "websocket"})
    assert (got.json()["reason"], provider.asked) == ("bad_request", [])


def test_only_the_guest_of_this_run_may_ask(broker, provider):
    got = broker.ask("GET", provider.origin, headers={"sealtape-token": "guessed"})
    assert (got.json()["reason"], provider.asked) == ("token", [])
    assert broker.ask("GET", f"{provider.origin}/v1").status_code == 200


def test_an_address_that_is_not_public_is_not_dialled(start):
    broker = start(KeyedGrant(grant=Grant(name="lan", origins=("http://10.255.255.1", "http://[fd00::1]"))))
    for host in ("10.255.255.1", "[fd00::1]"):
        got = broker.ask("GET", f"http://{host}/v1")
        assert (got.status_code, got.json()["reason"]) == (502, "address")
        assert "not a public address" in got.json()["message"]


def test_a_budget_is_counted_before_dialling(start, provider, grant):
    broker = start(grant, max_calls=2)
    assert [broker.ask("GET", provider.origin).status_code for _ in range(2)] == [200, 200]
    got = broker.ask("GET", provider.origin)
    assert (got.status_code, got.json()["reason"]) == (429, "budget")
    assert "budget of 2 calls is spent" in got.json()["message"]
    assert "--max-calls" in got.json()["message"]
    assert len(provider.asked) == 2


def test_a_redirect_is_returned_not_followed(broker, provider):
    provider.behave = lambda conn, _: conn.sendall(answer(b"", status="302 Found", headers="Location: /there\r\n"))
    got = broker.ask("GET", f"{provider.origin}/here")
    assert (got.status_code, got.headers["location"], len(provider.asked)) == (302, "/there", 1)


def test_headers_come_back_in_case_and_order_with_duplicates(broker, provider):
    raw = (
        "X-Request-ID: 7\r\nSet-Cookie: a=1\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n"
        "set-cookie: b=2\r\nSealtape-Answer: forged\r\n"
    )
    provider.behave = lambda conn, _: conn.sendall(answer(b"hi", status="429 Slow Down", headers=raw))
    got = broker.ask("GET", provider.origin)
    assert got.status_code == 429
    assert got.headers.raw == [
        (b"X-Request-ID", b"7"),
        (b"Set-Cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"content-length", b"2"),
        (b"sealtape-answer", b"live"),
        (b"sealtape-reason", b"Slow Down"),
    ]


def test_a_stream_passes_unbuffered_in_the_providers_chunks(broker, provider):
    heard = threading.Event()
    in_time = []

    def behave(conn, _):
        conn.sendall(CHUNKED + chunked(b"data: 1\n\n"))
        in_time.append(heard.wait(5))
        conn.sendall(chunked(b"data: 2\n\n", b"data: 3\n\n") + b"0\r\n\r\n")

    provider.behave = behave
    with broker.stream(provider.origin) as got:
        chunks = []
        for chunk in got.iter_raw():
            chunks.append(chunk)
            heard.set()
    assert in_time == [True]
    assert chunks == [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"]


def test_an_echoed_key_never_reaches_the_guest_wherever_it_is_cut(broker, provider, grant):
    body = b'{"you sent": "' + grant.key.encode() + b'"}'
    clean = b'{"you sent": "' + b"x" * len(grant.key) + b'"}'
    for at in range(len(body) + 1):
        pieces = [piece for piece in (body[:at], body[at:]) if piece]
        head = CHUNKED.replace(b"\r\n\r\n", f"\r\nX-Echo: Bearer {grant.key}\r\n\r\n".encode())
        sent = head + chunked(*pieces) + b"0\r\n\r\n"
        provider.behave = lambda conn, _, sent=sent: conn.sendall(sent)
        got = broker.ask("GET", provider.origin)
        assert got.content == clean
        assert got.headers["x-echo"] == "Bearer " + "x" * len(grant.key)


def test_an_answer_that_cannot_be_looked_into_is_refused(broker, provider):
    provider.behave = lambda conn, _: conn.sendall(answer(b"\x1f\x8b", headers="content-encoding: gzip\r\n"))
    got = broker.ask("GET", provider.origin)
    assert (got.status_code, got.json()["reason"]) == (502, "encoded")


def test_what_is_too_large_is_refused(broker, provider):
    provider.behave = lambda conn, _: conn.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n")
    got = broker.ask("GET", provider.origin)
    assert got.json() == {
        "reason": "too_large",
        "message": "The answer is larger than 64 MiB, the most that is recorded.",
    }
    got = broker.ask("POST", provider.origin, content=bytes(64 * 2**20 + 1))
    assert (got.json()["reason"], len(provider.asked)) == ("too_large", 1)


def test_every_call_is_reported(broker, provider, grant):
    usage = b'{"usage": {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}}'
    provider.behave = lambda conn, _: conn.sendall(answer(usage))
    broker.ask("POST", f"{provider.origin}/v1?q=private", headers={"authorization": f"Bearer {grant.placeholder}"})
    broker.ask("GET", "https://api.acme.test/v1")
    broker.ask("GET", f"{provider.origin}/{grant.key.replace('+', '%2B')}")
    broker.door.close()

    made, refused, astray = broker.door.calls
    assert (made.test, made.grant, made.method, made.path) == ("tests/test_a.py::test_ü", "acme", "POST", "/v1")
    assert (made.host, made.status, made.bytes, made.tokens) == (provider.origin[7:], 200, len(usage), 23)
    assert (made.refused, made.failure) == (None, None)
    assert (refused.host, refused.refused, refused.status) == ("api.acme.test", "host", None)
    assert astray.refused == "credential"
    assert broker.door.summary() == [
        "1 live call, 23 tokens",
        "  refused: api.acme.test, 1 call (no grant names it)",
        f"  refused: {provider.origin[7:]}, 1 call (key in the wrong place)",
    ]
    log = broker.audit.read_text()
    assert [json.loads(line)["refused"] for line in log.splitlines()] == [None, "host", "credential"]
    assert grant.key not in log
    assert "the-real-key" not in log
    assert "private" not in log


def test_a_proxy_leads_out_but_not_to_this_machine(start, provider):
    acme = KeyedGrant(grant=Grant(name="acme", origins=("http://api.acme.test", provider.origin)))
    broker = start(acme, proxy=provider.origin.replace("//", "//me:pass@"))
    assert broker.ask("GET", "http://api.acme.test/v1").status_code == 200
    assert broker.ask("GET", f"{provider.origin}/v2").status_code == 200
    through, direct = provider.asked
    assert through.line == "GET http://api.acme.test/v1 HTTP/1.1"
    assert through.header("proxy-authorization") == "Basic bWU6cGFzcw=="
    assert (direct.line, direct.header("proxy-authorization")) == ("GET /v2 HTTP/1.1", None)
