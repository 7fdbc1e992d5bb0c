"""From a request to its question: the canonical form, and the rules that shape it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sealtape.cassette.model import Question, key_of
from sealtape.config import QuestionRules, Redaction, Whitespace, origin_of

REDACTED = "REDACTED"

# Headers that carry credentials, in lower case. Never in a question, never in a file.
CREDENTIAL_HEADERS = frozenset(
    {
        "api-key",
        "authorization",
        "cookie",
        "ocp-apim-subscription-key",
        "proxy-authorization",
        "x-access-token",
        "x-amz-security-token",
        "x-api-key",
        "x-auth-token",
        "x-goog-api-key",
        "x-subscription-token",
        "xi-api-key",
    }
)
# Headers that tell whose account it is. Not secret, but nobody else's business: never in a file.
ACCOUNT_HEADERS = frozenset({"openai-organization", "openai-project"})
# Query and form fields that do, by their name in lower case with '-' as '_'.
CREDENTIAL_FIELDS = frozenset(
    {
        "access_token",
        "api_key",
        "apikey",
        "assertion",
        "client_assertion",
        "client_secret",
        "id_token",
        "password",
        "refresh_token",
        "x_amz_credential",
        "x_amz_security_token",
        "x_amz_signature",
    }
)
# These names are used for other things too (`?key=colour`), where dropping the field would make two
# questions one. They count as credentials where the value looks like one.
_PERHAPS_CREDENTIAL_FIELDS = frozenset({"key", "sig", "signature", "token"})
_CREDENTIAL_VALUE = re.compile(r"[A-Za-z0-9_.~+/=-]{16,}")
# The few headers that change an answer. Content-Type is told by the kind of body instead.
_ASKING_HEADERS = ("accept", "anthropic-beta", "anthropic-version", "openai-beta", "range")
# What every client sends when it has no wish of its own.
_ANY = frozenset({"*/*", "application/json", "application/json, */*", "application/json, text/plain, */*"})


def key_for(model: str, prompt: str, temperature: float, **parameters: Any) -> str:
    """The key of `sealtape.call(model, prompt, temperature, **parameters)`: 16 hex digits.

    It is the beginning of the SHA-256 of the arguments as JSON with sorted keys.
    """
    return key_of({"model": model, "prompt": prompt, "temperature": temperature, **parameters})


def call_question(model: str, prompt: str, temperature: float, parameters: Mapping[str, Any]) -> Question:
    return Question("call", {"model": model, "prompt": prompt, "temperature": temperature, **parameters})


def http_question(
    method: str,
    url: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    *,
    rules: QuestionRules,
    redact: Iterable[Redaction] = (),
    credential_field: str | None = None,
    foreign_credential: bool = False,
) -> Question:
    """The question of an HTTP request.

    `credential_field`: the query field in which this host takes its key, whatever the value.
    `foreign_credential`: it carries another credential than the granted one, which makes it
    another question (and a true 401 its answer); the credential itself never enters.
    """
    parts = urlsplit(url)
    data: dict[str, Any] = {
        "method": method.upper(),
        "url": origin_of(parts.scheme, parts.hostname or "", parts.port) + (parts.path or "/"),
    }
    fields = parse_qsl(parts.query, keep_blank_values=True)
    if query := sorted([n, v] for n, v in fields if n != credential_field and not is_credential_field(n, v)):
        data["query"] = query
    if asking := _asking_headers(headers):
        data["header"] = asking
    content_type = next((value for name, value in headers if name.lower() == "content-type"), "")
    data |= _body(body, content_type)
    if foreign_credential:
        data["credential"] = "other"
    for pointer in rules.ignore:
        _drop(data, pointer)
    for rule in rules.substitute:
        _rewrite_at(data, rule.at, partial(rule.pattern.sub, rule.replacement))
    # Redacted before matching exactly as before writing, or a stored question could never match.
    for redaction in redact:
        for place in ("body", "form", "multipart", "text", "query"):
            _rewrite_at(data, f"/{place}", partial(redaction.pattern.sub, redaction.replacement))
    if rules.whitespace != "exact":
        for place in ("body", "form", "multipart", "text"):
            _rewrite_at(data, f"/{place}", lambda text: _even(text, rules.whitespace))
    return Question("http", data)


def is_credential_field(name: str, value: str) -> bool:
    name = name.lower().replace("-", "_")
    if name in _PERHAPS_CREDENTIAL_FIELDS:
        return _CREDENTIAL_VALUE.fullmatch(value) is not None
    return name in CREDENTIAL_FIELDS


def parse_json(text: str) -> Any:
    """JSON, strictly: raises ValueError where parsing would lose something of the text.

    That is: duplicate keys, NaN and infinities (also numbers too large for a float), and
    nesting too deep to handle.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError as error:
        msg = "nested too deeply"
        raise ValueError(msg) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        msg = "duplicate keys"
        raise ValueError(msg)
    return result


def _no_constant(text: str) -> Any:
    msg = f"{text} is not JSON"
    raise ValueError(msg)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        msg = f"{text} does not fit a float"
        raise ValueError(msg)
    return number


def _asking_headers(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    asking: dict[str, str] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in _ASKING_HEADERS and not (lower == "accept" and value.lower() in _ANY):
            asking[lower] = f"{asking[lower]}, {value}" if lower in asking else value
    return asking


def _body(body: bytes, content_type: str) -> dict[str, Any]:
    if not body:
        return {}
    kind = content_type.partition(";")[0].strip().lower()
    text: str | None = None
    try:
        text = body.decode("utf-8")
        if kind == "application/json" or kind.endswith("+json") or not kind:
            return {"body": parse_json(text)}
    except ValueError:
        pass  # no text, or not really JSON: it counts as what it is
    if kind == "application/x-www-form-urlencoded" and text is not None:
        pairs = parse_qsl(text, keep_blank_values=True)
        return {"form": sorted([n, REDACTED if is_credential_field(n, v) else v] for n, v in pairs)}
    if kind == "multipart/form-data" and (parts := _multipart(body, content_type)) is not None:
        return {"multipart": parts}
    if text is not None:
        return {"text": text, **({"type": kind} if kind else {})}
    return {"binary": _digest(body), **({"type": kind} if kind else {})}


def _multipart(body: bytes, content_type: str) -> list[dict[str, Any]] | None:
    """The parts without their boundary, or None where the body is not what its header says."""
    # Imported here: it takes as long as all else here together, and few requests are of this kind.
    from email import message_from_bytes, policy

    message = message_from_bytes(
        b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n" + body, policy=policy.HTTP
    )
    if not message.is_multipart() or message.defects:
        return None
    parts = []
    for part in message.iter_parts():
        name = str(part.get_param("name", "", header="content-disposition"))
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        described: dict[str, Any] = {"name": name}
        if filename := part.get_filename():
            described["filename"] = filename
            described["type"] = part.get_content_type()
            described["binary"] = _digest(payload)
        else:
            text = payload.decode("utf-8", "backslashreplace")
            described["text"] = REDACTED if is_credential_field(name, text) else text
        parts.append(described)
    return parts


def _digest(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _drop(data: dict[str, Any], pointer: str) -> None:
    """Removes what an RFC 6901 pointer names. `*` stands for every element or field."""
    steps = _steps(pointer)
    if steps[0] in ("query", "form") and len(steps) == 2:  # noqa: PLR2004 -- /query/NAME
        if steps[0] in data:
            data[steps[0]] = [pair for pair in data[steps[0]] if pair[0] != steps[1]]
            if not data[steps[0]]:
                del data[steps[0]]
        return
    for parent, last in _parents(data, steps):
        if isinstance(parent, dict):
            parent.pop(last, None)
        elif isinstance(parent, list) and last.isdecimal() and int(last) < len(parent):
            del parent[int(last)]


def _parents(value: Any, steps: list[str]) -> list[tuple[Any, str]]:
    if len(steps) == 1:
        return [(value, steps[0])]
    if steps[0] == "*":
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    elif isinstance(value, dict):
        inner = [value[steps[0]]] if steps[0] in value else []
    elif isinstance(value, list) and steps[0].isdecimal() and int(steps[0]) < len(value):
        inner = [value[int(steps[0])]]
    else:
        inner = []
    return [found for item in inner for found in _parents(item, steps[1:])]


def _rewrite_at(data: dict[str, Any], pointer: str, change: Callable[[str], str]) -> None:
    """Applies `change` to every string at and below the pointer."""
    for parent, last in _parents(data, _steps(pointer)):
        if isinstance(parent, dict) and last in parent:
            parent[last] = _rewritten(parent[last], change)
        elif isinstance(parent, list) and last.isdecimal() and int(last) < len(parent):
            parent[int(last)] = _rewritten(parent[int(last)], change)


def _rewritten(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case dict():
            return {name: _rewritten(item, change) for name, item in value.items()}
        case list():
            return [_rewritten(item, change) for item in value]
    return value


def _even(text: str, whitespace: Whitespace) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if whitespace == "trailing":
        text = "\n".join(line.rstrip() for line in text.split("\n")).rstrip()
    elif whitespace == "collapse":
        text = re.sub(r"\s+", " ", text).strip()
    return text
