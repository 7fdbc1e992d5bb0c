from __future__ import annotations

import pytest

from sealtape.broker.rules import admit, parse
from sealtape.broker.wire import KeyedGrant, Refused
from sealtape.config import Grant

GRANTS = [
    KeyedGrant(grant=Grant(name="tls", origins=("https://tls.test",), paths=("/v1/",))),
    KeyedGrant(grant=Grant(name="local", origins=("http://127.0.0.1:8765", "http://[::1]:8765"))),
]


@pytest.mark.parametrize(
    ("method", "url", "name", "path", "query"),
    [
        ("GET", "https://tls.test/v1/x", "tls", "/v1/x", ""),
        ("POST", "https://TLS.test:443/v1/a%2Fb?q=%20&r=//@:", "tls", "/v1/a%2Fb", "?q=%20&r=//@:"),
        ("GET", "https://tls.test/v1/m:generate@2,(x)?", "tls", "/v1/m:generate@2,(x)", "?"),
        ("GET", "http://127.0.0.1:8765", "local", "/", ""),
        ("GET", "http://[::1]:8765?a", "local", "/", "?a"),
    ],
)
def test_what_a_grant_allows_goes_as_it_was_written(method, url, name, path, query):
    target = parse(url)
    assert admit(method, target, GRANTS).grant.name == name
    assert (target.path, target.query) == (path, query)


@pytest.mark.parametrize(
    ("method", "url", "reason", "text"),
    [
        ("GET", "https://api.openai.com/v1/models", "host", '[tool.sealtape.grants.openai]\npreset = "openai"'),
        ("GET", "https://api.acme.test/v1", "host", '[tool.sealtape.grants.acme]\nhosts = ["api.acme.test"]'),
        ("GET", "http://127.0.0.1:9/v1", "host", '[tool.sealtape.grants.local]\nhosts = ["http://127.0.0.1:9"]'),
        ("GET", "http://box/v1", "host", '[tool.sealtape.grants.box]\nhosts = ["http://box"]'),
        ("GET", "https://tls.test.evil.test/v1/x", "host", "No grant names https://tls.test.evil.test"),
        ("GET", "https://tls.test./v1/x", "host", "No grant names"),
        ("GET", "https://tls.test:8443/v1/x", "host", "No grant names https://tls.test:8443"),
        ("GET", "http://127.0.0.1/v1", "host", "No grant names http://127.0.0.1"),
        ("GET", "http://tls.test/v1/x", "scheme", "tls.test is granted over https only"),
        ("GET", "ftp://tls.test/v1/x", "scheme", "granted over https only"),
        ("GET", "ftp://acme.test/x", "scheme", "only http and https"),
        (
            "DELETE",
            "https://tls.test/v1/x",
            "method",
            "which allows GET, POST. Set methods in [tool.sealtape.grants.tls]",
        ),
        ("CONNECT", "https://tls.test/v1/x", "method", "which allows GET, POST"),
        ("GET", "https://tls.test/v2/x", "path", "paths below /v1/. Set paths in [tool.sealtape.grants.tls]"),
        ("GET", "https://tls.test//v1/x", "path", "paths below /v1/"),
        ("GET", "https://tls.test/v1/../admin", "path", "dot segments"),
        ("GET", "https://tls.test/v1/%2e%2E/admin", "path", "dot segments"),
        ("GET", "https://tls.test/v1/..%2Fadmin", "path", "dot segments"),
        ("GET", "https://tls.test/v1/..%5Cadmin", "path", "dot segments"),
        ("GET", "https://me:secret@tls.test/v1/x", "bad_request", "user name or password"),
        ("GET", "https://tls.test\\/v1/x", "bad_request", "not an absolute"),
        ("GET", "https://tls.test/v1/\\x", "bad_request", "not an absolute"),
        ("GET", "https://tls.test/v1/x#top", "bad_request", "not an absolute"),
        ("GET", "https://tls.test/v1/x y", "bad_request", "not an absolute"),
        ("GET", "https://tls.test/v1/x\n", "bad_request", "not an absolute"),
        ("GET", "https://tls.test:x/v1", "bad_request", "not an absolute"),
        ("GET", "https:///v1/x", "bad_request", "not an absolute"),
        ("GET", "/v1/x", "bad_request", "not an absolute"),
        ("GET", "", "bad_request", "not an absolute"),
    ],
)
def test_anything_else_is_refused_with_the_remedy(method, url, reason, text):
    with pytest.raises(Refused) as caught:
        admit(method, parse(url), GRANTS)
    assert caught.value.why == reason
    assert text in caught.value.message
    assert "secret" not in caught.value.message
