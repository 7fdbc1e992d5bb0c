"""Nothing secret on disk: what is taken out at the write boundary, and what stops the write."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from urllib.parse import quote, quote_plus

from sealtape.cassette.key import ACCOUNT_HEADERS, CREDENTIAL_HEADERS, REDACTED, parse_json
from sealtape.cassette.model import Answer, Cassette, Failure, Said, Take
from sealtape.config import Redaction
from sealtape.errors import SecretError

# A secret shorter than this is looked for and refused, never replaced: it would shred the text.
REPLACEABLE = 12

# Fields of a JSON answer that hand out credentials (RFC 6749, section 5.1, and its kin).
_ISSUED = frozenset({"access_token", "refresh_token", "id_token", "client_secret", "session_token"})


@dataclass(frozen=True)
class Finding:
    """A secret, by its name and the place it stands in. Never its value."""

    name: str
    place: str

    def __str__(self) -> str:
        return f"{self.name} at {self.place}"


def redacted(cassette: Cassette, *, secrets: Mapping[str, str], rules: Iterable[Redaction]) -> Cassette:
    """The cassette as it may be written.

    Credential headers, issued tokens, the exact `secrets` (name to value) and the configured
    patterns are replaced in the takes. The question is not changed here: what is replaced in
    it is replaced before its key is made.
    """
    takes = tuple(_take(take, secrets, tuple(rules)) for take in cassette.takes)
    return replace(cassette, takes=takes)


def hidden(text: str, secrets: Mapping[str, str]) -> str:
    """A text for people to read, without the exact `secrets` (name to value)."""
    return _text(text, secrets, ())


def refuse_secrets(data: bytes, *, secrets: Mapping[str, str], name: str) -> None:
    """Raises `SecretError`, with the place, if a file's bytes still carry a secret."""
    findings = find_secrets(data, secrets)
    if findings:
        raise SecretError(
            f"{name} would carry a secret: {'; '.join(map(str, findings[:3]))}",
            tip="it was not written; if it is no secret, replace it with a [[tool.sealtape.redact]] pattern",
        )


def find_secrets(data: bytes, secrets: Mapping[str, str]) -> list[Finding]:
    """The secrets in `data`: exact values in all their forms, and the shapes of known tokens."""
    findings = []
    for name, value in secrets.items():
        place = next((at for form in forms(value) if (at := data.find(form)) >= 0), -1) if value else -1
        if place >= 0:
            line = data.count(b"\n", 0, place) + 1
            findings.append(Finding(name, f"line {line}"))
    text = data.decode("utf-8", "replace")
    for number, written in enumerate(text.split("\n"), 1):
        findings += [Finding(kind, f"line {number}") for kind in _token_shapes(written)]
    return findings


def forms(value: str) -> tuple[bytes, ...]:
    """The ways in which a value may be written: plain, url-encoded, JSON-escaped, base64."""
    urls = {quote(value, safe=""), quote_plus(value)}
    escaped = json.dumps(value)[1:-1]
    # Lower-case digits in a URL and escaped slashes in JSON are as valid, and some servers write them.
    lower = {re.sub("%..", lambda digits: digits[0].lower(), url) for url in urls}
    texts = {value, *urls, *lower, escaped, escaped.replace("/", "\\/")}
    return (*sorted((text.encode() for text in texts), key=len, reverse=True), *_base64(value.encode()))


def _base64(plain: bytes) -> Iterator[bytes]:
    """The base64 of a value inside a longer one: three alignments, less the digits that its neighbours share."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for lead in range(3):
            padded = encode(b"\0" * lead + plain)
            first = (0, 2, 3)[lead]
            last = (len(plain) + lead) * 8 // 6
            if last - first >= 8:  # noqa: PLR2004 -- fewer digits occur by chance
                yield padded[first:last]


def _take(take: Take, secrets: Mapping[str, str], rules: tuple[Redaction, ...]) -> Take:
    match take:
        case Said():
            return replace(take, text=_text(take.text, secrets, rules))
        case Failure():
            after = _take(take.after, secrets, rules) if take.after else None
            message = _text(take.message, secrets, rules)
            return replace(take, message=message, after=after if isinstance(after, Answer) else None)
        case Answer():
            return _answer(take, secrets, rules)
    raise AssertionError(take)


def _answer(answer: Answer, secrets: Mapping[str, str], rules: tuple[Redaction, ...]) -> Answer:
    body = _body(_issued(answer.body), secrets, rules)
    headers = tuple((name, _header(name, value, secrets, rules)) for name, value in answer.headers)
    if body == answer.body:
        return replace(answer, headers=headers)
    length = tuple((n, str(len(body)) if n.lower() == "content-length" else v) for n, v in headers)
    # The chunk sizes fit the body that arrived, not this one.
    return replace(answer, headers=length, body=body, chunks=(len(body),))


def _header(name: str, value: str, secrets: Mapping[str, str], rules: tuple[Redaction, ...]) -> str:
    if name.lower() == "set-cookie":
        # The name and the attributes stay, so that the client's cookie jar works in replay.
        pair, semicolon, attributes = value.partition(";")
        return f"{pair.partition('=')[0]}={REDACTED}{semicolon}{attributes}"
    if name.lower() in CREDENTIAL_HEADERS | ACCOUNT_HEADERS:
        return REDACTED
    return _text(value, secrets, rules)


def _text(text: str, secrets: Mapping[str, str], rules: tuple[Redaction, ...]) -> str:
    return _body(text.encode("utf-8", "surrogatepass"), secrets, rules).decode("utf-8", "surrogatepass")


def _body(body: bytes, secrets: Mapping[str, str], rules: tuple[Redaction, ...]) -> bytes:
    # The longest first: one secret may be the beginning of another.
    for value in sorted(secrets.values(), key=len, reverse=True):
        if len(value) >= REPLACEABLE:
            for form in forms(value):
                body = body.replace(form, REDACTED.encode())
    if rules:
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            return body
        for rule in rules:
            text = rule.pattern.sub(rule.replacement, text)
        body = text.encode()
    return body


def _issued(body: bytes) -> bytes:
    """A token answer with its tokens replaced; any other body as it is."""
    if not any(name.encode() in body for name in _ISSUED):
        return body
    try:
        document = parse_json(body.decode("utf-8"))
    except ValueError:
        return body
    if not isinstance(document, dict) or not _ISSUED.intersection(document):
        return body
    return json.dumps({n: REDACTED if n in _ISSUED and isinstance(v, str) else v for n, v in document.items()}).encode()


def _token_shapes(line: str) -> Iterator[str]:
    for detector in _detectors():
        if any(detector.analyze_string(line)):
            yield str(detector.secret_type)


@cache
def _detectors() -> tuple[Any, ...]:
    """detect-secrets' detectors of token shapes, without those that guess by entropy or by a word nearby.

    A model's answer is full of words and hashes; a guess would refuse every other recording.
    """
    # Imported here: only a session that records, or a check, pays for it.
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    class AnthropicDetector(RegexBasedDetector):
        secret_type = "Anthropic Token"  # noqa: S105
        denylist = (re.compile(r"sk-ant-[A-Za-z0-9_-]{24,}"),)

    class GoogleDetector(RegexBasedDetector):
        secret_type = "Google API Key"  # noqa: S105
        denylist = (re.compile(r"AIza[0-9A-Za-z_-]{35}"), re.compile(r"ya29\.[0-9A-Za-z_-]{20,}"))

    class ProviderDetector(RegexBasedDetector):
        secret_type = "Model Provider Token"  # noqa: S105
        denylist = (
            re.compile(r"sk-(?:proj|svcacct|or)-[A-Za-z0-9_-]{20,}"),
            re.compile(r"(?:gsk|xai|hf)[_-][A-Za-z0-9]{30,}"),
        )

    guessing = {
        "BasicAuthDetector",
        "IPPublicDetector",
        "KeywordDetector",
        "Base64HighEntropyString",
        "HexHighEntropyString",
    }
    shapes: Any = get_mapping_from_secret_type_to_class().values()
    known = tuple(cls() for cls in shapes if cls.__name__ not in guessing)
    return (*known, AnthropicDetector(), GoogleDetector(), ProviderDetector())
