"""Which calls are allowed: exact host, https, method and path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from sealtape.broker.wire import KeyedGrant, Refused, Why
from sealtape.config import PRESETS, origin_of

# Stricter than RFC 3986 on purpose: what two parsers could read differently is not a URL here.
_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!-\"$->@-\[\]-~]*)?"
    r"(?P<query>\?[!-\"$-~]*)?",
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a call goes. `path` and `query` are the bytes that were sent; `query` keeps its "?"."""

    scheme: str
    host: str
    port: int | None
    path: str
    query: str = ""

    @property
    def origin(self) -> str:
        return origin_of(self.scheme, self.host, self.port)

    @property
    def authority(self) -> str:
        return self.origin.partition("://")[2]


def parse(url: str) -> Target:
    """An absolute URL. Raises `Refused` for one that is not, or that carries a user name."""
    match = _URL.fullmatch(url)
    if match is None:
        if re.match(r"[a-z]+://[^/?#]*@", url):
            raise Refused(Why.BAD_REQUEST, "The URL carries a user name or password. Send credentials in a header.")
        raise Refused(Why.BAD_REQUEST, "The URL is not an absolute http or https URL.")
    return Target(
        scheme=match["scheme"],
        host=match["host"].lower(),
        port=int(match["port"]) if match["port"] else None,
        path=match["path"] or "/",
        query=match["query"] or "",
    )


def admit(method: str, target: Target, grants: Sequence[KeyedGrant]) -> KeyedGrant:
    """The grant that allows a call. Raises `Refused` with the lines that would allow it."""
    keyed = next((keyed for keyed in grants if keyed.grant.covers(target.origin)), None)
    if keyed is None:
        raise _no_grant(target, grants)
    grant = keyed.grant
    table = f"[tool.sealtape.grants.{grant.name}]"
    if method not in grant.methods:
        allowed = ", ".join(grant.methods)
        message = f"{method} is not allowed by the grant {grant.name!r}, which allows {allowed}."
        raise Refused(Why.METHOD, f"{message} Set methods in {table}.")
    if any(segment in (".", "..") for segment in re.split(r"[/\\]", unquote(target.path))):
        raise Refused(Why.PATH, f"The path {target.path} has dot segments, which lead out of what a grant allows.")
    if not target.path.startswith(grant.paths):
        allowed = ", ".join(grant.paths)
        message = f"{target.path} is not allowed by the grant {grant.name!r}, which allows paths below {allowed}."
        raise Refused(Why.PATH, f"{message} Set paths in {table}.")
    return keyed


def _no_grant(target: Target, grants: Sequence[KeyedGrant]) -> Refused:
    origin = target.origin
    secure = origin_of("https", target.host, target.port)
    if target.scheme != "https" and any(keyed.grant.covers(secure) for keyed in grants):
        return Refused(Why.SCHEME, f"{target.host} is granted over https only, and was asked over {target.scheme}.")
    if target.scheme not in ("http", "https"):
        return Refused(Why.SCHEME, f"{target.scheme}:// cannot be recorded; only http and https can.")
    name = next((name for name, preset in PRESETS.items() if preset["hosts"] == [target.host]), None)
    if name and origin == secure:
        lines = f'[tool.sealtape.grants.{name}]\npreset = "{name}"'
    else:
        host = target.authority if target.scheme == "https" else origin
        lines = f'[tool.sealtape.grants.{_name_for(target.host)}]\nhosts = ["{host}"]'
    message = f"No grant names {origin}. If the tests shall ask it, add to pyproject.toml:\n\n{lines}\n"
    return Refused(Why.HOST, message)


def _name_for(host: str) -> str:
    """A table name from a host: `acme` for `api.acme.com`, `local` for an address."""
    labels = [label for label in host.split(".") if re.fullmatch(r"[a-z0-9_-]*[a-z][a-z0-9_-]*", label)]
    match labels:
        case [] | ["localhost"]:
            return "local"
        case [*_, name, _]:
            return name
        case [name]:
            return name
    return "local"
