"""The guest's placeholder becomes the real key, in one place, for one grant. Nothing else does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote, unquote_plus

from sealtape.broker.scrub import patterns_of
from sealtape.broker.wire import KeyedGrant, Refused, Why
from sealtape.cassette.key import CREDENTIAL_HEADERS, is_credential_field

# What a credential of the guest's own becomes: the provider says 401, as it does to any wrong key.
INVALID = "sealtape-invalid-key"
# What a server without a key gets instead of whatever the client library sends.
NO_KEY = "sealtape-no-key"

_DROPPED = frozenset({"cookie", "proxy-authorization"})

Headers = list[tuple[str, str]]


class Credentials:
    """The keys of a session, and where each may go."""

    def __init__(self, grants: Sequence[KeyedGrant]) -> None:
        self._placeholders = {keyed.placeholder: keyed for keyed in grants if keyed.placeholder}
        self._patterns = {keyed.grant.name: patterns_of(keyed.key) for keyed in grants if keyed.key}

    @property
    def patterns(self) -> frozenset[bytes]:
        """Every form of every real key: what may never reach the guest."""
        return frozenset().union(*self._patterns.values())

    def headers(self, headers: Headers, keyed: KeyedGrant) -> Headers:
        """The headers as they go to the provider. Raises `Refused` for a placeholder that is astray."""
        return list(self._headers(headers, keyed))

    def query(self, query: str, keyed: KeyedGrant) -> str:
        """The query, "?" included, as it goes to the provider; other fields stay as they were written."""
        if not query:
            return query
        return "?" + "&".join(self._field(field, keyed) for field in query[1:].split("&"))

    def keep_out(self, data: bytes, keyed: KeyedGrant, place: str) -> None:
        """Refuses data of the guest's that carries a placeholder or, worse, a real key."""
        for name, patterns in self._patterns.items():
            if any(pattern in data for pattern in patterns):
                message = f"The real key of the grant {name!r} stands in the {place}: it is known inside the sandbox."
                raise Refused(Why.CREDENTIAL, f"{message} Look for it in the project's files, and mask them.")
        for placeholder, owner in self._placeholders.items():
            if placeholder.encode() in data:
                raise self._astray(owner, keyed, place)

    def _headers(self, headers: Headers, keyed: KeyedGrant) -> Iterator[tuple[str, str]]:
        grant = keyed.grant
        for name, value in headers:
            if name in _DROPPED:
                continue
            if name == grant.header:
                # Authentication schemes are case-insensitive (RFC 9110, 11.1).
                if value.lower().startswith(grant.prefix.lower()):
                    head, credential = value[: len(grant.prefix)], value[len(grant.prefix) :].strip()
                    yield name, head + self._exchange(credential, keyed, f"header {name}")
                else:
                    yield name, grant.prefix + self._foreign(value, keyed, f"header {name}")
            elif name in CREDENTIAL_HEADERS:
                head = "Bearer " if name == "authorization" else ""
                yield name, head + self._foreign(value, keyed, f"header {name}")
            else:
                self.keep_out(value.encode("latin-1"), keyed, f"header {name}")
                yield name, value

    def _field(self, field: str, keyed: KeyedGrant) -> str:
        raw, equals, value = field.partition("=")
        name = unquote_plus(raw)
        if name == keyed.grant.query:
            credential = self._exchange(unquote_plus(value), keyed, f"query field {name}")
            return raw + equals + quote(credential, safe="")
        if is_credential_field(name, unquote_plus(value)):
            return raw + equals + self._foreign(unquote_plus(value), keyed, f"query field {name}")
        self.keep_out(unquote_plus(field).encode("utf-8", "surrogateescape"), keyed, "query")
        return field

    def _exchange(self, credential: str, keyed: KeyedGrant, place: str) -> str:
        """A credential where the grant's belongs: the placeholder for the key, any other for an invalid one."""
        if keyed.key and credential == keyed.placeholder:
            return keyed.key
        return self._foreign(credential, keyed, place)

    def _foreign(self, credential: str, keyed: KeyedGrant, place: str) -> str:
        if keyed.key is None:
            # A local server: whatever the client library insists on sending stays here.
            return NO_KEY
        self.keep_out(credential.encode("utf-8", "surrogateescape"), keyed, place)
        return INVALID

    def _astray(self, owner: KeyedGrant, keyed: KeyedGrant, place: str) -> Refused:
        grant = owner.grant
        if owner.placeholder != keyed.placeholder:
            message = (
                f"The key of the grant {grant.name!r} stands in the {place} of a call that belongs to the grant "
                f"{keyed.grant.name!r}. Check which key, or which base URL, the client was given."
            )
            return Refused(Why.CREDENTIAL, message)
        where = f"header {keyed.grant.header!r} after {keyed.grant.prefix!r}"
        if keyed.grant.query:
            where += f" or query field {keyed.grant.query!r}"
        message = f"The key of the grant {grant.name!r} stands in the {place}; it is put in only in {where}."
        return Refused(
            Why.CREDENTIAL, f"{message} Set header, prefix or query in [tool.sealtape.grants.{keyed.grant.name}]."
        )
