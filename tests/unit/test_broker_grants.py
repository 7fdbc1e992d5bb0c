from __future__ import annotations

from pathlib import Path

import pytest

from sealtape import config
from sealtape.broker.grants import prepare_grants
from sealtape.broker.wire import BrokerConfig, CallEvent
from sealtape.errors import ConfigError

KEY = "sk-a-real-looking-key"


def settings(**grants):
    return config.parse(Path("/project"), {"grants": grants})


def test_a_grant_gets_its_key_and_a_placeholder_of_its_providers_shape():
    (keyed,) = prepare_grants(settings(openai={"preset": "openai"}), {"OPENAI_API_KEY": f" {KEY}\n"})
    (again,) = prepare_grants(settings(openai={"preset": "openai"}), {"OPENAI_API_KEY": KEY})
    assert keyed.key == KEY
    assert keyed.placeholder.startswith("sk-sealtape")
    assert keyed.placeholder != again.placeholder
    assert KEY not in repr(keyed)


def test_a_grant_without_a_key_needs_none():
    (keyed,) = prepare_grants(settings(local={"hosts": ["http://127.0.0.1:8765"]}), {})
    assert (keyed.key, keyed.placeholder) == (None, None)


def test_grants_that_share_a_variable_share_its_placeholder():
    same = {"key_env": "ACME_KEY"}
    first, second = prepare_grants(
        settings(a={"hosts": ["a.test"], **same}, b={"hosts": ["b.test"], **same}), {"ACME_KEY": KEY}
    )
    assert first.placeholder == second.placeholder


@pytest.mark.parametrize("environ", [{}, {"OPENAI_API_KEY": "", "GROQ_API_KEY": " "}])
def test_every_missing_key_is_named_with_its_grant(environ):
    with pytest.raises(ConfigError) as caught:
        prepare_grants(settings(openai={"preset": "openai"}, fast={"preset": "groq"}), environ)
    assert str(caught.value) == (
        "the grant 'openai' needs OPENAI_API_KEY, which is not set\n"
        "the grant 'fast' needs GROQ_API_KEY, which is not set\n"
        "  export OPENAI_API_KEY=… before recording, or take [tool.sealtape.grants.openai] out"
    )


@pytest.mark.parametrize(
    ("key", "text"),
    [("sk-a\nb-injected", "characters that no key has"), ("schlüssel", "no key has"), ("short", "5 char")],
)
def test_what_is_no_key_is_not_shown(key, text):
    with pytest.raises(ConfigError, match=text) as caught:
        prepare_grants(settings(openai={"preset": "openai"}), {"OPENAI_API_KEY": key})
    assert "OPENAI_API_KEY" in caught.value.message
    assert key not in str(caught.value)


def test_the_configuration_crosses_the_pipe_whole():
    grants = prepare_grants(settings(g={"preset": "gemini", "paths": ["/v1/"]}), {"GEMINI_API_KEY": KEY})
    sent = BrokerConfig(socket="/door/door.sock", token="t", grants=grants, max_calls=3, ca="PEM", proxy="http://p:1")
    got = BrokerConfig.from_line(sent.to_line())
    assert sent.to_line().count(b"\n") == 1
    assert got.grants[0].grant.paths == ("/v1/",)
    assert got.grants[0].grant.key_env is None  # the broker has no business with the environment
    assert (got.grants[0].key, got.grants[0].placeholder) == (KEY, grants[0].placeholder)
    assert (got.socket, got.token, got.max_calls, got.ca, got.proxy) == ("/door/door.sock", "t", 3, "PEM", "http://p:1")
    assert KEY not in repr(sent)


def test_an_event_says_nothing_of_itself_that_it_does_not_know():
    assert CallEvent().to_line() == (
        '{"event": "call", "test": "", "grant": null, "method": "", "host": "", "path": "", "status": null, '
        '"bytes": 0, "ms": 0, "tokens": null, "refused": null, "failure": null}'
    )
