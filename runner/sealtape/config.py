"""`[tool.sealtape]` and the environment, as frozen settings. Nothing else reads either."""

from __future__ import annotations

import difflib
import enum
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from sealtape.errors import ConfigError

ENGINES = ("auto", "docker", "bubblewrap")
WHITESPACE = ("exact", "newlines", "trailing", "collapse")
GUEST_VARIABLE = "SEALTAPE_GUEST"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

Whitespace = Literal["exact", "newlines", "trailing", "collapse"]
Blocked = Literal["report", "fail"]


class Mode(enum.StrEnum):
    """What a session does with a question: play its recording, record the answer, or stay out."""

    REPLAY = "replay"
    RECORD = "record"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class Grant:
    """One permission of the broker: these hosts, with the key from this environment variable.

    `origins` are `scheme://host[:port]`. A grant without `key_env` carries no key: a model
    server on this machine. The key goes into `header`, behind `prefix`, or into the query
    field `query`; nowhere else.
    """

    name: str
    origins: tuple[str, ...]
    key_env: str | None = None
    header: str = "authorization"
    prefix: str = "Bearer "
    query: str | None = None
    methods: tuple[str, ...] = ("GET", "POST")
    paths: tuple[str, ...] = ("/",)

    def covers(self, origin: str) -> bool:
        """Whether `origin` is one of the grant's. localhost and 127.0.0.1 are one machine by two names."""
        return _by_address(origin) in map(_by_address, self.origins)


def _by_address(origin: str) -> str:
    scheme, _, rest = origin.partition("://")
    host, colon, port = rest.rpartition(":") if re.search(r":\d+$", rest) else (rest, "", "")
    return f"{scheme}://{'127.0.0.1' if host in ('localhost', '[::1]') else host}{colon}{port}"


def _preset(host: str, key_env: str, **more: Any) -> dict[str, Any]:
    return {"hosts": [host], "key_env": key_env, **more}


# Hosts, variables and headers as each provider's own SDK uses them.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "anthropic": _preset("api.anthropic.com", "ANTHROPIC_API_KEY", header="x-api-key", prefix=""),
    "cohere": _preset("api.cohere.com", "CO_API_KEY"),
    "deepseek": _preset("api.deepseek.com", "DEEPSEEK_API_KEY"),
    "gemini": _preset(
        "generativelanguage.googleapis.com",
        "GEMINI_API_KEY",
        header="x-goog-api-key",
        prefix="",
        query="key",
    ),
    "groq": _preset("api.groq.com", "GROQ_API_KEY"),
    "mistral": _preset("api.mistral.ai", "MISTRAL_API_KEY"),
    "openai": _preset("api.openai.com", "OPENAI_API_KEY"),
    "openrouter": _preset("openrouter.ai", "OPENROUTER_API_KEY"),
    "together": _preset("api.together.xyz", "TOGETHER_API_KEY"),
    "xai": _preset("api.x.ai", "XAI_API_KEY"),
}


@dataclass(frozen=True, kw_only=True)
class Substitution:
    """Text that is the same for the purpose of asking: `pattern` becomes `replacement` below `at`."""

    at: str
    pattern: re.Pattern[str]
    replacement: str


@dataclass(frozen=True, kw_only=True)
class QuestionRules:
    """What makes two requests the same question. Applied to recording and matching alike."""

    whitespace: Whitespace = "exact"
    ignore: tuple[str, ...] = ()
    substitute: tuple[Substitution, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Redaction:
    """Text that never reaches the disk: `pattern` is written as `replacement`."""

    pattern: re.Pattern[str]
    replacement: str


@dataclass(frozen=True, kw_only=True)
class Build:
    """How the images are built. None of it stays in an image."""

    containerfile: str = "Containerfile"
    base_image: str | None = None
    ca_bundle: Path | None = None
    index: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outward:
    """How this machine reaches the outside: for the broker only, never part of a recording."""

    ca_bundle: Path | None = None
    proxy: str | None = None


@dataclass(frozen=True, kw_only=True)
class GuestLink:
    """What the host tells the pytest plugin inside a sandbox.

    `engine` made the sandbox; that the guest runs at all means it is sealed. `report` is the file
    for the run's results. In a record session `outbox` is where recordings go, `door` the
    broker's socket and `token` what opens it.
    """

    engine: str
    report: Path
    outbox: Path | None = None
    door: Path | None = None
    token: str = field(default="", repr=False)
    missing_only: bool = False

    def to_json(self) -> str:
        return json.dumps({k: str(v) if isinstance(v, Path) else v for k, v in vars(self).items()})

    @classmethod
    def from_json(cls, text: str) -> GuestLink:
        raw = json.loads(text)
        paths = {k: Path(raw[k]) if raw[k] else None for k in ("report", "outbox", "door")}
        return cls(**{**raw, **paths})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a project. `origin` names, per setting, where its value came from."""

    root: Path
    declared: bool = False
    mode: Mode = Mode.REPLAY
    cassettes: Path = Path("cassettes")
    tests: tuple[str, ...] = ("tests",)
    engine: str = "auto"
    timeout: float = 1800.0
    mask: tuple[str, ...] = (".env", ".env.*")
    ignore_hosts: tuple[str, ...] = ()
    passthrough: tuple[str, ...] = tuple(sorted(LOOPBACK))
    env: tuple[str, ...] = ()
    blocked: Blocked = "report"
    chat_url: str = "https://api.openai.com/v1"
    grants: tuple[Grant, ...] = ()
    questions: QuestionRules = QuestionRules()
    redact: tuple[Redaction, ...] = ()
    build: Build = Build()
    outward: Outward = Outward()
    guest: GuestLink | None = None
    origin: Mapping[str, str] = field(default_factory=dict)

    def grant_for(self, origin: str) -> Grant | None:
        return next((g for g in self.grants if g.covers(origin)), None)

    def key_variables(self) -> tuple[str, ...]:
        """The environment variables that get a placeholder in the guest: granted and well known."""
        known = [str(preset["key_env"]) for preset in PRESETS.values()]
        return tuple(dict.fromkeys([*(g.key_env for g in self.grants if g.key_env), *known]))


def load(
    start: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    mode: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of the project that `start` lies in. Raises `ConfigError`.

    What a caller gives (`mode`, `overrides`: keys of the table) wins over the environment,
    which wins over `pyproject.toml`.
    """
    root = find_root(start)
    pyproject = root / "pyproject.toml"
    table: dict[str, Any] | None = None
    if pyproject.is_file():
        try:
            document = tomllib.loads(pyproject.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            msg = f"{pyproject} is not valid TOML: {error}"
            raise ConfigError(msg) from error
        table = document.get("tool", {}).get("sealtape")
    settings = replace(parse(root, {} if table is None else table), declared=table is not None)
    if "tests" not in settings.origin and _names_testpaths(root):
        settings = replace(settings, tests=(), origin={**settings.origin, "tests": "pytest's testpaths"})
    settings = _from_environ(settings, {**environ, **({"CASSETTE_MODE": mode} if mode else {})})
    if overrides:
        given = parse(root, overrides)
        named = {key: getattr(given, key) for key in overrides}
        settings = replace(settings, **named, origin={**settings.origin, **dict.fromkeys(overrides, "given")})
    return settings


def _names_testpaths(root: Path) -> bool:
    """Whether pytest's own configuration says where the tests are. Then nothing of ours is to say it again."""
    files = [root / name for name in ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")]
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file())
    return any(re.search(r"^testpaths\s*=", text, re.MULTILINE) for text in texts)


def in_guest(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a sandbox of ours."""
    return bool(environ.get(GUEST_VARIABLE))


def in_ci(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this runs in continuous integration, as all its providers say it: `CI=true`."""
    return environ.get("CI", "").lower() in ("true", "1", "yes")


def credentials(settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The value that this process holds for each variable that may hold a key: real, or a placeholder."""
    return {name: environ[name] for name in settings.key_variables() if environ.get(name)}


def find_root(start: Path) -> Path:
    """The nearest folder, from `start` upwards, that holds a `pyproject.toml`; else `start`."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / "pyproject.toml").is_file():
            return folder
    return start


def parse(root: Path, table: Mapping[str, Any]) -> Settings:
    """`[tool.sealtape]` as settings. Raises `ConfigError` at the first thing that is wrong."""
    where = "[tool.sealtape]"
    _known(where, _table(where, table), _KEYS)
    given = {key: _KEYS[key](f"{where} {key}", value) for key, value in table.items()}
    if "cassettes" in given:
        given["cassettes"] = root / given["cassettes"]
    settings = Settings(
        root=root,
        **{"cassettes": root / "cassettes", **given},
        origin=dict.fromkeys(given, "pyproject.toml"),
    )
    keyed = {g.key_env for g in settings.grants if g.key_env}
    if leaked := keyed.intersection(settings.env):
        msg = f"{where} env: {', '.join(sorted(leaked))} is the key of a grant; it never enters the sandbox"
        raise ConfigError(msg, tip="take it out of env: the guest gets a placeholder by itself")
    return settings


def _from_environ(settings: Settings, environ: Mapping[str, str]) -> Settings:
    changes: dict[str, Any] = {}
    origin = dict(settings.origin)
    if mode := environ.get("CASSETTE_MODE"):
        if mode not in tuple(Mode):
            msg = f"CASSETTE_MODE is {mode!r}; it is one of {', '.join(Mode)}"
            raise ConfigError(msg)
        changes["mode"], origin["mode"] = Mode(mode), "CASSETTE_MODE"
    if folder := environ.get("CASSETTE_DIR"):
        changes["cassettes"], origin["cassettes"] = settings.root / folder, "CASSETTE_DIR"
    if link := environ.get(GUEST_VARIABLE):
        changes["guest"] = GuestLink.from_json(link)
    build = settings.build
    if base := environ.get("SEALTAPE_BASE_IMAGE"):
        build = replace(build, base_image=base)
        origin["build.base_image"] = "SEALTAPE_BASE_IMAGE"
    if given := environ.get("SEALTAPE_CA_BUNDLE"):
        build = replace(build, ca_bundle=Path(given))
        origin["build.ca_bundle"] = "SEALTAPE_CA_BUNDLE"
    index = {name: environ[name] for name in PIP_VARIABLES if environ.get(name)}
    build = replace(build, index={**build.index, **index})
    bundle = build.ca_bundle or environ.get("SSL_CERT_FILE") or environ.get("REQUESTS_CA_BUNDLE")
    proxy = environ.get("HTTPS_PROXY") or environ.get("https_proxy")
    changes["outward"] = Outward(ca_bundle=Path(bundle) if bundle else None, proxy=proxy)
    declared = settings.declared or bool(environ.get("CASSETTE_MODE") or environ.get("CASSETTE_DIR"))
    return replace(settings, build=build, declared=declared, origin=origin, **changes)


# pip's own variables that say where packages come from.
PIP_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")


def _known(where: str, table: Mapping[str, Any], known: Mapping[str, Any] | tuple[str, ...]) -> None:
    for key in table:
        if key in known:
            continue
        near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
        tip = f"perhaps you meant {near[0]!r}" if near else f"known: {', '.join(sorted(known))}"
        msg = f"{where} has no key {key!r}"
        raise ConfigError(msg, tip=tip)


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        msg = f"{where}: a non-empty string is needed, found {value!r}"
        raise ConfigError(msg)
    return value


def _plain(where: str, value: Any) -> str:
    if not isinstance(value, str):
        msg = f"{where}: a string is needed, found {value!r}"
        raise ConfigError(msg)
    return value


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        msg = f"{where}: a list of strings is needed, found {value!r}"
        raise ConfigError(msg)
    return tuple(_text(where, item) for item in value)


def _hosts(where: str, value: Any) -> tuple[str, ...]:
    hosts = tuple(host.strip("[]").lower() for host in _texts(where, value))
    for host in hosts:
        # An IPv6 address has more than one colon; one is a port or a scheme.
        if "/" in host or host.count(":") == 1:
            msg = f"{where}: {host!r} is not a host's name"
            raise ConfigError(msg, tip="give the name alone: 'traces.example.com'")
    return hosts


def _choice(*choices: str) -> Callable[[str, Any], str]:
    def check(where: str, value: Any) -> str:
        if value not in choices:
            msg = f"{where}: one of {', '.join(choices)} is needed, found {value!r}"
            raise ConfigError(msg)
        return str(value)

    return check


def _seconds(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        msg = f"{where}: a number of seconds above 0 is needed, found {value!r}"
        raise ConfigError(msg)
    return float(value)


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        msg = f"{where}: a table is needed, found {value!r}"
        raise ConfigError(msg)
    return value


def _tables(where: str, value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        msg = f"{where}: a list of tables ([[...]]) is needed, found {value!r}"
        raise ConfigError(msg)
    return [_table(where, item) for item in value]


def _pattern(where: str, value: Any) -> re.Pattern[str]:
    try:
        return re.compile(_text(where, value))
    except re.error as error:
        msg = f"{where}: {value!r} is not a regular expression: {error}"
        raise ConfigError(msg) from error


def _pointer(where: str, value: Any) -> str:
    text = _text(where, value)
    if not re.match(r"/(body|form|query|header)(/|$)", text):
        msg = f"{where}: {text!r} is not a pointer into a request"
        raise ConfigError(msg, tip="pointers begin with /body, /form, /query or /header: '/body/metadata'")
    return text


def _grants(where: str, value: Any) -> tuple[Grant, ...]:
    grants = tuple(_grant(f"{where[:-1]}.{name}]", name, body) for name, body in _table(where, value).items())
    owner: dict[str, str] = {}
    for grant in grants:
        for origin in grant.origins:
            if other := owner.get(origin):
                msg = f"the grants {other!r} and {grant.name!r} both name {origin}"
                raise ConfigError(msg, tip="a host belongs to one grant, or it is unclear which key it gets")
            owner[origin] = grant.name
    return grants


def _grant(where: str, name: str, value: Any) -> Grant:
    table = dict(_table(where, value))
    if "preset" in table:
        preset = _text(f"{where} preset", table.pop("preset"))
        if preset not in PRESETS:
            msg = f"{where} preset: {preset!r} is not known"
            raise ConfigError(msg, tip=f"known: {', '.join(sorted(PRESETS))}")
        table = {**PRESETS[preset], **table}
    _known(where, table, ("preset", "hosts", "key_env", "header", "prefix", "query", "methods", "paths"))
    if not table.get("hosts"):
        msg = f"{where} names no hosts"
        raise ConfigError(msg, tip='give hosts = ["api.example.com"], or a preset')
    keyed = "key_env" in table
    origins = tuple(_origin(where, host, keyed=keyed) for host in _texts(f"{where} hosts", table["hosts"]))
    given: dict[str, Any] = {}
    for key in ("key_env", "query"):
        if key in table:
            given[key] = _text(f"{where} {key}", table[key])
    if "header" in table:
        given["header"] = _text(f"{where} header", table["header"]).lower()
    if "prefix" in table:
        given["prefix"] = _plain(f"{where} prefix", table["prefix"])
    for key in ("methods", "paths"):
        if key in table:
            given[key] = _texts(f"{where} {key}", table[key])
    return Grant(name=name, origins=origins, **given)


def _origin(where: str, text: str, *, keyed: bool) -> str:
    """`host`, `host:port` or `scheme://host[:port]`, as `scheme://host[:port]` without a default port."""
    parts = urlsplit(text if "://" in text else f"https://{text}")
    try:
        origin = origin_of(parts.scheme, parts.hostname or "", parts.port)
    except ValueError as error:
        msg = f"{where} hosts: {text!r} has no valid port"
        raise ConfigError(msg) from error
    extra = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in ("http", "https") or not parts.hostname or extra or "*" in text:
        msg = f"{where} hosts: {text!r} is not one exact host"
        raise ConfigError(msg, tip="give 'api.example.com' or 'http://127.0.0.1:8765'; paths go into paths = [...]")
    if parts.scheme == "http" and keyed and parts.hostname not in LOOPBACK:
        msg = f"{where} hosts: {text!r} would send the key over plain http"
        raise ConfigError(msg, tip="use https")
    return origin


def origin_of(scheme: str, host: str, port: int | None) -> str:
    """The canonical `scheme://host[:port]`: lower case, no default port, brackets round IPv6."""
    host = host.lower()
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    default = {"http": 80, "https": 443}.get(scheme)
    return f"{scheme}://{host}" + (f":{port}" if port not in (None, default) else "")


def _questions(where: str, value: Any) -> QuestionRules:
    where = "[tool.sealtape.questions]"
    table = _table(where, value)
    _known(where, table, ("whitespace", "ignore", "substitute"))
    whitespace: Any = _choice(*get_args(Whitespace))(f"{where} whitespace", table.get("whitespace", "exact"))
    ignore = tuple(_pointer(f"{where} ignore", item) for item in _texts(f"{where} ignore", table.get("ignore", [])))
    substitutions = []
    for entry in _tables(f"{where} substitute", table.get("substitute", [])):
        here = "[[tool.sealtape.questions.substitute]]"
        _known(here, entry, ("at", "pattern", "with"))
        substitutions.append(
            Substitution(
                at=_pointer(f"{here} at", entry.get("at")),
                pattern=_pattern(f"{here} pattern", entry.get("pattern")),
                replacement=_plain(f"{here} with", entry.get("with")),
            )
        )
    return QuestionRules(whitespace=whitespace, ignore=ignore, substitute=tuple(substitutions))


def _redact(where: str, value: Any) -> tuple[Redaction, ...]:
    where = "[[tool.sealtape.redact]]"
    rules = []
    for entry in _tables(where, value):
        _known(where, entry, ("pattern", "with"))
        rules.append(
            Redaction(
                pattern=_pattern(f"{where} pattern", entry.get("pattern")),
                replacement=_plain(f"{where} with", entry.get("with", "REDACTED")),
            )
        )
    return tuple(rules)


def _build(where: str, value: Any) -> Build:
    where = "[tool.sealtape.build]"
    table = _table(where, value)
    _known(where, table, ("containerfile", "base_image", "ca_bundle", "index_url", "extra_index_url", "trusted_host"))
    given: dict[str, Any] = {}
    for key in ("containerfile", "base_image"):
        if key in table:
            given[key] = _text(f"{where} {key}", table[key])
    if "ca_bundle" in table:
        given["ca_bundle"] = Path(_text(f"{where} ca_bundle", table["ca_bundle"]))
    index = {
        f"PIP_{key.upper()}": _text(f"{where} {key}", table[key])
        for key in table
        if f"PIP_{key.upper()}" in PIP_VARIABLES
    }
    return Build(index=index, **given)


_KEYS: Mapping[str, Callable[[str, Any], Any]] = {
    "cassettes": _text,
    "tests": _texts,
    "engine": _choice(*ENGINES),
    "timeout": _seconds,
    "mask": _texts,
    "ignore_hosts": _hosts,
    "passthrough": _hosts,
    "env": _texts,
    "blocked": _choice(*get_args(Blocked)),
    "chat_url": _text,
    "grants": lambda _where, value: _grants("[tool.sealtape.grants]", value),
    "questions": _questions,
    "redact": _redact,
    "build": _build,
}
