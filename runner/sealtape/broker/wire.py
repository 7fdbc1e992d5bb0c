"""What crosses the broker's borders: its configuration, the guest's headers, refusals and events."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sealtape.config import Grant

# The guest asks `METHOD /call`, with any target, and puts the absolute URL here: servers and clients rewrite request
# targets (a lone "?", an empty path), a header arrives as it was sent.
URL = "sealtape-url"
TOKEN = "sealtape-token"  # noqa: S105 -- a header's name
TEST = "sealtape-test"
TIMEOUT = "sealtape-timeout"
# On the way back: who answers (live, refused, failure), and the provider's own reason phrase.
ANSWER = "sealtape-answer"
REASON = "sealtape-reason"
OURS = "sealtape-"


class Why(enum.StrEnum):
    """Why the broker did not carry out a call."""

    TOKEN = "token"  # noqa: S105 -- not a secret
    HOST = "host"
    SCHEME = "scheme"
    METHOD = "method"
    PATH = "path"
    BUDGET = "budget"
    CREDENTIAL = "credential"
    ADDRESS = "address"
    TOO_LARGE = "too_large"
    ENCODED = "encoded"
    BAD_REQUEST = "bad_request"


class Refused(Exception):  # noqa: N818 -- an answer, not an error
    """The broker's no, as the guest reads it: a code and one or two sentences with the remedy."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(why, message)
        self.why = why
        self.message = message

    @property
    def status(self) -> int:
        match self.why:
            case Why.BUDGET:
                return 429
            case Why.ADDRESS | Why.ENCODED:
                return 502
            case _:
                return 403


class UpstreamError(Exception):
    """The provider's side failed: `kind` is how, in the words of a recording."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True, kw_only=True)
class KeyedGrant:
    """A grant as the broker gets it: with the real key, and the placeholder the guest holds instead."""

    grant: Grant
    key: str | None = field(default=None, repr=False)
    placeholder: str | None = None

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self.grant)
        del fields["key_env"]  # the broker reads no environment
        return {**fields, "key": self.key, "placeholder": self.placeholder}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> KeyedGrant:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
        key, placeholder = fields.pop("key"), fields.pop("placeholder")
        return cls(grant=Grant(**fields), key=key, placeholder=placeholder)


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """The one line that the broker reads from its standard input.

    `max_calls` None is no limit; `ca` is PEM text that is trusted beside the system's;
    `proxy` is the URL of the HTTP proxy that leads out.
    """

    socket: str
    token: str = field(repr=False)
    grants: tuple[KeyedGrant, ...]
    max_calls: int | None = None
    ca: str | None = None
    proxy: str | None = field(default=None, repr=False)

    def to_line(self) -> bytes:
        grants = [grant.to_dict() for grant in self.grants]
        raw = {name: getattr(self, name) for name in ("socket", "token", "max_calls", "ca", "proxy")}
        return json.dumps({**raw, "grants": grants}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> BrokerConfig:
        raw = json.loads(line)
        return cls(**{**raw, "grants": tuple(KeyedGrant.from_dict(grant) for grant in raw["grants"])})


@dataclass(frozen=True, kw_only=True)
class CallEvent:
    """One call, as the broker reports it. `refused` is a `Why`, `failure` what broke.

    `path` comes without its query, `bytes` counts the answer's body, `ms` is the whole call.
    """

    test: str = ""
    grant: str | None = None
    method: str = ""
    host: str = ""
    path: str = ""
    status: int | None = None
    bytes: int = 0
    ms: int = 0
    tokens: int | None = None
    refused: str | None = None
    failure: str | None = None

    def to_line(self) -> str:
        return json.dumps({"event": "call", **asdict(self)})

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> CallEvent:
        return cls(**{k: v for k, v in raw.items() if k != "event"})
