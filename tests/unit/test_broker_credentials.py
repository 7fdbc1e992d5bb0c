from __future__ import annotations

import pytest

from sealtape.broker.credentials import Credentials
from sealtape.broker.wire import KeyedGrant, Refused
from sealtape.config import Grant

OWN = "sk-sealtape-own-placeholder"
ACME = KeyedGrant(
    grant=Grant(name="acme", origins=("https://acme.test",), query="token"), key="sk-real/acme", placeholder=OWN
)
OTHER = KeyedGrant(
    grant=Grant(name="other", origins=("https://other.test",), header="x-api-key", prefix=""),
    key="real-other-key",
    placeholder="sealtape-other-placeholder",
)
LOCAL = KeyedGrant(grant=Grant(name="local", origins=("http://127.0.0.1:8765",)))
CREDENTIALS = Credentials([ACME, OTHER, LOCAL])


@pytest.mark.parametrize(
    ("keyed", "name", "value", "goes_as"),
    [
        (ACME, "authorization", f"Bearer {OWN}", "Bearer sk-real/acme"),
        (ACME, "authorization", f"bearer {OWN}", "bearer sk-real/acme"),
        (ACME, "authorization", "Bearer sk-my-own", "Bearer sealtape-invalid-key"),
        (ACME, "authorization", "Basic bXk6b3du", "Bearer sealtape-invalid-key"),
        (ACME, "authorization", "", "Bearer sealtape-invalid-key"),
        (ACME, "x-api-key", "my-own", "sealtape-invalid-key"),
        (ACME, "x-goog-api-key", "my-own", "sealtape-invalid-key"),
        (ACME, "user-agent", "acme/1", "acme/1"),
        (OTHER, "x-api-key", "sealtape-other-placeholder", "real-other-key"),
        (OTHER, "authorization", "Bearer my-own", "Bearer sealtape-invalid-key"),
        (LOCAL, "authorization", f"Bearer {OWN}", "Bearer sealtape-no-key"),
        (LOCAL, "authorization", "Bearer my-own", "Bearer sealtape-no-key"),
        (LOCAL, "x-api-key", "my-own", "sealtape-no-key"),
    ],
)
def test_a_header_goes_with_the_key_or_with_none(keyed, name, value, goes_as):
    assert CREDENTIALS.headers([(name, value)], keyed) == [(name, goes_as)]


def test_cookies_do_not_go():
    assert CREDENTIALS.headers([("cookie", "a=b"), ("proxy-authorization", "Basic x"), ("x", "1")], ACME) == [
        ("x", "1")
    ]


@pytest.mark.parametrize(
    ("keyed", "query", "goes_as"),
    [
        (ACME, "", ""),
        (ACME, "?", "?"),
        (ACME, f"?a=%7e&&token={OWN}&b", "?a=%7e&&token=sk-real%2Facme&b"),
        (ACME, "?tok%65n=my-own", "?tok%65n=sealtape-invalid-key"),
        (ACME, "?api_key=my-own&API-Key=my-own", "?api_key=sealtape-invalid-key&API-Key=sealtape-invalid-key"),
        (LOCAL, "?key=my-own-0123456789", "?key=sealtape-no-key"),
    ],
)
def test_a_query_field_goes_with_the_key_or_with_none(keyed, query, goes_as):
    assert CREDENTIALS.query(query, keyed) == goes_as


@pytest.mark.parametrize(
    ("keyed", "headers", "query", "text"),
    [
        (ACME, [("x-api-key", OWN)], "", "stands in the header x-api-key; it is put in only in header 'authorization'"),
        (ACME, [("authorization", OWN)], "", "after 'Bearer ' or query field 'token'"),
        (ACME, [("user-agent", f"x {OWN}")], "", "header user-agent"),
        (ACME, [], f"?q={OWN}", "stands in the query;"),
        (ACME, [], "?q=sk%2Dsealtape-own-placeholder", "stands in the query;"),
        (ACME, [], f"?key={OWN}", "query field key;"),
        (OTHER, [("x-api-key", OWN)], "", "grant 'acme' stands in the header x-api-key of a call that belongs to"),
        (OTHER, [], f"?{OWN}", "grant 'acme' stands in the query of a call that belongs to the grant 'other'"),
        (LOCAL, [("user-agent", OWN)], "", "grant 'acme' stands in the header user-agent of a call"),
        (ACME, [("authorization", "Bearer sk-real/acme")], "", "real key of the grant 'acme'"),
        (ACME, [("x", "c2stcmVhbC9hY21l")], "", "real key of the grant 'acme'"),
        (OTHER, [], "?q=sk-real%2Facme", "real key of the grant 'acme'"),
    ],
)
def test_a_placeholder_astray_and_a_real_key_are_refused_with_the_place(keyed, headers, query, text):
    def send():
        return CREDENTIALS.query(query, keyed), CREDENTIALS.headers(headers, keyed)

    with pytest.raises(Refused) as caught:
        send()
    assert caught.value.why == "credential"
    assert text in caught.value.message
    assert "real/acme" not in caught.value.message


def test_two_grants_may_share_a_key():
    first, second = (
        KeyedGrant(grant=Grant(name=name, origins=(f"https://{name}.test",)), key="sk-real-key", placeholder=OWN)
        for name in ("first", "second")
    )
    for keyed in (first, second):
        got = Credentials([first, second]).headers([("authorization", f"Bearer {OWN}")], keyed)
        assert got == [("authorization", "Bearer sk-real-key")]
