from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sealtape import config
from sealtape.config import PRESETS, Build, Grant, GuestLink, Mode, QuestionRules, Settings, load, origin_of, parse
from sealtape.errors import ConfigError
from sealtape.placeholder import MARK, placeholder_for

ROOT = Path("/project")


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def error(table: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(ROOT, table)
    return str(caught.value)


def grants(**named: Any) -> tuple[Grant, ...]:
    return parse(ROOT, {"grants": named}).grants


def test_without_a_table_the_defaults_hold(tmp_path: Path) -> None:
    settings = load(project(tmp_path, "[project]\nname = 'x'\n"), {})
    assert settings == Settings(root=tmp_path, cassettes=tmp_path / "cassettes")
    assert (settings.declared, settings.mode, settings.engine, settings.timeout) == (False, Mode.REPLAY, "auto", 1800.0)


def test_every_key_is_read(tmp_path: Path) -> None:
    text = r"""
[tool.sealtape]
cassettes = "tapes"
tests = ["checks", "more"]
engine = "docker"
timeout = 60
mask = [".secret"]
ignore_hosts = ["Traces.example.com"]
passthrough = ["localhost"]
env = ["LANG"]
blocked = "fail"
chat_url = "https://chat.example.com/v1"

[tool.sealtape.grants.openai]
preset = "openai"

[tool.sealtape.questions]
whitespace = "newlines"
ignore = ["/body/metadata", "/form/a", "/query/ts", "/header/accept"]

[[tool.sealtape.questions.substitute]]
at = "/body/messages"
pattern = '\d+'
with = "<n>"

[[tool.sealtape.redact]]
pattern = "cust_[a-z]+"

[tool.sealtape.build]
containerfile = "Dockerfile"
base_image = "base:1"
ca_bundle = "/ca.pem"
index_url = "https://index.example.com"
extra_index_url = "https://extra.example.com"
trusted_host = "index.example.com"
"""
    settings = load(project(tmp_path, text), {})
    assert settings.declared
    assert settings.cassettes == tmp_path / "tapes"
    assert settings.tests == ("checks", "more")
    assert (settings.engine, settings.timeout, settings.mask) == ("docker", 60.0, (".secret",))
    assert (settings.ignore_hosts, settings.passthrough) == (("traces.example.com",), ("localhost",))
    assert (settings.env, settings.blocked, settings.chat_url) == (("LANG",), "fail", "https://chat.example.com/v1")
    assert settings.grants == (Grant(name="openai", origins=("https://api.openai.com",), key_env="OPENAI_API_KEY"),)
    assert settings.questions.whitespace == "newlines"
    assert settings.questions.ignore == ("/body/metadata", "/form/a", "/query/ts", "/header/accept")
    (rule,) = settings.questions.substitute
    assert (rule.at, rule.pattern, rule.replacement) == ("/body/messages", re.compile(r"\d+"), "<n>")
    assert [(r.pattern.pattern, r.replacement) for r in settings.redact] == [("cust_[a-z]+", "REDACTED")]
    assert settings.build == Build(
        containerfile="Dockerfile",
        base_image="base:1",
        ca_bundle=Path("/ca.pem"),
        index={
            "PIP_INDEX_URL": "https://index.example.com",
            "PIP_EXTRA_INDEX_URL": "https://extra.example.com",
            "PIP_TRUSTED_HOST": "index.example.com",
        },
    )
    assert settings.origin["engine"] == "pyproject.toml"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"cassete": "x"}, "[tool.sealtape] has no key 'cassete'\n  perhaps you meant 'cassettes'"),
        ({"zzz": 1}, "[tool.sealtape] has no key 'zzz'\n  known: blocked, build, cassettes"),
        ({"cassettes": ""}, "cassettes: a non-empty string is needed, found ''"),
        ({"cassettes": 3}, "cassettes: a non-empty string is needed, found 3"),
        ({"tests": "tests"}, "tests: a list of strings is needed, found 'tests'"),
        ({"tests": [1]}, "tests: a non-empty string is needed, found 1"),
        ({"engine": "podman"}, "engine: one of auto, docker, bubblewrap is needed, found 'podman'"),
        ({"blocked": "ignore"}, "blocked: one of report, fail is needed"),
        ({"timeout": 0}, "timeout: a number of seconds above 0 is needed, found 0"),
        ({"timeout": True}, "timeout: a number of seconds above 0 is needed, found True"),
        ({"timeout": "60"}, "timeout: a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout: a number of seconds above 0"),
        ({"grants": []}, "[tool.sealtape.grants]: a table is needed, found []"),
        ({"grants": {"a": "openai"}}, "[tool.sealtape.grants.a]: a table is needed, found 'openai'"),
        ({"grants": {"a": {}}}, "[tool.sealtape.grants.a] names no hosts\n  give hosts"),
        ({"grants": {"a": {"hosts": []}}}, "[tool.sealtape.grants.a] names no hosts"),
        ({"grants": {"a": {"host": ["x"]}}}, "has no key 'host'\n  perhaps you meant 'hosts'"),
        ({"grants": {"a": {"preset": "opnai"}}}, "preset: 'opnai' is not known\n  known: anthropic, cohere"),
        ({"grants": {"a": {"preset": ["openai"]}}}, "preset: a non-empty string is needed"),
        ({"grants": {"a": {"hosts": ["*.example.com"]}}}, "'*.example.com' is not one exact host"),
        ({"grants": {"a": {"hosts": ["https://a.example.com/v1"]}}}, "is not one exact host\n  give 'api.example.com'"),
        ({"grants": {"a": {"hosts": ["https://me@a.example.com"]}}}, "is not one exact host"),
        ({"grants": {"a": {"hosts": ["ftp://a.example.com"]}}}, "is not one exact host"),
        ({"grants": {"a": {"hosts": ["a.example.com:port"]}}}, "'a.example.com:port' has no valid port"),
        (
            {"grants": {"a": {"hosts": ["http://a.example.com"], "key_env": "KEY"}}},
            "'http://a.example.com' would send the key over plain http\n  use https",
        ),
        (
            {"grants": {"a": {"preset": "openai"}, "b": {"hosts": ["api.openai.com"]}}},
            "the grants 'a' and 'b' both name https://api.openai.com\n  a host belongs to one grant",
        ),
        ({"questions": []}, "[tool.sealtape.questions]: a table is needed"),
        ({"questions": {"whitespace": "none"}}, "whitespace: one of exact, newlines, trailing, collapse is needed"),
        ({"questions": {"ignored": []}}, "has no key 'ignored'\n  perhaps you meant 'ignore'"),
        ({"questions": {"ignore": ["metadata"]}}, "'metadata' is not a pointer into a request\n  pointers begin with"),
        ({"questions": {"substitute": {}}}, "a list of tables ([[...]]) is needed, found {}"),
        ({"questions": {"substitute": [{"pattern": "a", "with": "b"}]}}, "at: a non-empty string is needed"),
        ({"questions": {"substitute": [{"at": "/body", "pattern": "a"}]}}, "with: a string is needed, found None"),
        ({"questions": {"substitute": [{"at": "/body", "pattern": "(", "with": ""}]}}, "is not a regular expression"),
        ({"redact": [{"pattern": "["}]}, "'[' is not a regular expression"),
        ({"redact": [{"patern": "a"}]}, "has no key 'patern'\n  perhaps you meant 'pattern'"),
        ({"redact": {"pattern": "a"}}, "[[tool.sealtape.redact]]: a list of tables"),
        ({"build": {"base": "x"}}, "[tool.sealtape.build] has no key 'base'\n  perhaps you meant 'base_image'"),
        ({"ignore_hosts": ["https://traces.example.com"]}, "'https://traces.example.com' is not a host's name"),
        ({"passthrough": ["localhost:8000"]}, "'localhost:8000' is not a host's name"),
        (
            {"env": ["OPENAI_API_KEY"], "grants": {"a": {"preset": "openai"}}},
            "env: OPENAI_API_KEY is the key of a grant; it never enters the sandbox",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(table: dict[str, Any], message: str) -> None:
    assert message in error(table)


def test_a_table_that_is_none_and_a_file_that_is_no_toml_are_errors(tmp_path: Path) -> None:
    for text, message in (("[tool]\nsealtape = 3\n", "a table is needed, found 3"), ("[tool", "is not valid TOML")):
        with pytest.raises(ConfigError, match=message):
            load(project(tmp_path, text), {})


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("api.example.com", "https://api.example.com"),
        ("API.Example.com:443", "https://api.example.com"),
        ("https://api.example.com:8443/", "https://api.example.com:8443"),
        ("http://127.0.0.1:8765", "http://127.0.0.1:8765"),
        ("http://[::1]:80", "http://[::1]"),
    ],
)
def test_hosts_have_one_canonical_form(host: str, origin: str) -> None:
    (grant,) = grants(a={"hosts": [host]})
    assert grant.origins == (origin,)
    assert grant.covers(origin)
    assert not grant.covers(origin + "0")


def test_a_loopback_host_may_take_a_key_over_http() -> None:
    (grant,) = grants(a={"hosts": ["http://localhost:1"], "key_env": "K", "header": "X-Key", "prefix": ""})
    assert (grant.header, grant.prefix, grant.key_env) == ("x-key", "", "K")


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_is_a_grant_and_what_is_given_wins(preset: str) -> None:
    (grant,) = grants(a={"preset": preset})
    assert grant.key_env == PRESETS[preset]["key_env"]
    (moved,) = grants(a={"preset": preset, "hosts": ["proxy.example.com"], "paths": ["/v1/chat"]})
    assert moved.origins == ("https://proxy.example.com",)
    assert (moved.key_env, moved.paths) == (grant.key_env, ("/v1/chat",))


def test_a_grant_is_found_by_its_origin() -> None:
    settings = parse(ROOT, {"grants": {"a": {"preset": "openai"}, "b": {"hosts": ["http://localhost:1"]}}})
    found = settings.grant_for("http://localhost:1")
    assert found is not None
    assert found.name == "b"
    assert settings.grant_for("https://localhost:1") is None


def test_the_environment_wins_over_the_file_and_the_caller_over_both(tmp_path: Path) -> None:
    project(tmp_path, '[tool.sealtape]\ncassettes = "a"\nengine = "docker"\n')
    environ = {"CASSETTE_MODE": "record", "CASSETTE_DIR": "b"}
    from_file, from_env = load(tmp_path, {}), load(tmp_path, environ)
    given = load(tmp_path, environ, mode="off", overrides={"cassettes": "c"})
    assert [s.cassettes.name for s in (from_file, from_env, given)] == ["a", "b", "c"]
    assert [s.mode for s in (from_file, from_env, given)] == [Mode.REPLAY, Mode.RECORD, Mode.OFF]
    assert [s.origin["cassettes"] for s in (from_file, from_env, given)] == ["pyproject.toml", "CASSETTE_DIR", "given"]
    assert given.engine == "docker"


def test_an_unknown_mode_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CASSETTE_MODE is 'live'; it is one of replay, record, off"):
        load(tmp_path, {"CASSETTE_MODE": "live"})


def test_overrides_are_checked_like_the_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="perhaps you meant 'grants'"):
        load(tmp_path, {}, overrides={"grant": {}})


@pytest.mark.parametrize("name", ["CASSETTE_MODE", "CASSETTE_DIR"])
def test_either_variable_declares_the_project(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, {name: "record"}).declared
    assert not load(tmp_path, {name: ""}).declared


def test_the_image_and_the_way_out_come_from_the_environment(tmp_path: Path) -> None:
    environ = {
        "SEALTAPE_BASE_IMAGE": "base:2",
        "SEALTAPE_CA_BUNDLE": "/ca.pem",
        "PIP_INDEX_URL": "https://index.example.com",
        "HTTPS_PROXY": "http://proxy:3128",
    }
    project(tmp_path, '[tool.sealtape.build]\nbase_image = "base:1"\ntrusted_host = "h"\n')
    settings = load(tmp_path, environ)
    assert settings.build.base_image == "base:2"
    assert settings.build.index == {"PIP_TRUSTED_HOST": "h", "PIP_INDEX_URL": "https://index.example.com"}
    assert (settings.outward.ca_bundle, settings.outward.proxy) == (Path("/ca.pem"), "http://proxy:3128")


def test_the_project_is_found_from_below(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert config.find_root(below) == below
    assert config.find_root(project(tmp_path, "") / "a" / "b") == tmp_path


def test_what_the_host_tells_the_guest_survives_json() -> None:
    for link in (
        GuestLink(engine="docker", report=Path("/out/report.json")),
        GuestLink(
            engine="bubblewrap",
            report=Path("/out/r.json"),
            outbox=Path("/out/outbox"),
            door=Path("/door/door.sock"),
            token="t",
            missing_only=True,
        ),
    ):
        assert GuestLink.from_json(link.to_json()) == link
    assert "a-token" not in repr(GuestLink(engine="docker", report=Path("/r"), token="a-token"))


def test_the_guest_link_is_read_from_the_environment(tmp_path: Path) -> None:
    link = GuestLink(engine="docker", report=Path("/out/report.json"))
    assert load(tmp_path, {"SEALTAPE_GUEST": link.to_json()}).guest == link


@pytest.mark.parametrize(("value", "ci"), [("true", True), ("1", True), ("TRUE", True), ("", False), ("false", False)])
def test_ci_is_recognised(value: str, ci: bool) -> None:  # noqa: FBT001
    assert config.in_ci({"CI": value}) is ci
    assert not config.in_ci({})


def test_credentials_are_those_of_the_grants_and_the_known_providers() -> None:
    settings = parse(ROOT, {"grants": {"a": {"hosts": ["a.example.com"], "key_env": "ACME_KEY"}}})
    environ = {"ACME_KEY": "1", "OPENAI_API_KEY": "2", "OTHER": "3", "GROQ_API_KEY": ""}
    assert config.credentials(settings, environ) == {"ACME_KEY": "1", "OPENAI_API_KEY": "2"}


@pytest.mark.parametrize(
    ("parts", "origin"),
    [
        (("https", "A.example.com", 443), "https://a.example.com"),
        (("http", "a", 443), "http://a:443"),
        (("https", "::1", None), "https://[::1]"),
        (("https", "[::1]", 8), "https://[::1]:8"),
    ],
)
def test_origins(parts: tuple[str, str, int | None], origin: str) -> None:
    assert origin_of(*parts) == origin


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings(root=ROOT).mode = Mode.OFF  # type: ignore[misc]
    assert QuestionRules() == QuestionRules()


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "ACME_KEY"])
def test_a_placeholder_has_the_providers_shape_and_is_the_same_in_every_replay(variable: str) -> None:
    still, fresh = placeholder_for(variable, fresh=False), placeholder_for(variable, fresh=True)
    assert still == placeholder_for(variable, fresh=False)
    assert fresh != placeholder_for(variable, fresh=True)
    assert len(still) == len(fresh)
    assert MARK in still
    assert MARK in fresh
    assert fresh.startswith({"OPENAI_API_KEY": "sk-", "ANTHROPIC_API_KEY": "sk-ant-api03-"}.get(variable, ""))
