"""`sealtape.call`: one question to a chat model, answered by the deck."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any
from urllib.parse import urlsplit

from sealtape.cassette import deck as decks
from sealtape.cassette.deck import Deck, Recording
from sealtape.cassette.model import Answer, Failure, Said, Take
from sealtape.config import Mode, origin_of
from sealtape.errors import SealtapeError
from sealtape.guest import door as doors
from sealtape.guest import session

TIMEOUT = 600.0  # seconds, as the providers' own SDKs have it


class CallError(SealtapeError):
    """The model could not be asked, or gave no text."""


def call(model: str, prompt: str, temperature: float = 0.0, **parameters: Any) -> str:
    """The text with which `model` answers `prompt`.

    In replay it comes from `cassettes/<key>.json`; where there is none, `CassetteMiss` is
    raised, and nothing is asked. In record the chat completions API at `chat_url`
    (`[tool.sealtape]`) is asked and the answer is recorded. Further `parameters` enter the key
    and the request: `max_tokens=200, seed=7`. Raises `CassetteMiss`, `CallError`.
    """
    deck = decks.current()
    if deck is None:
        with session.session() as deck:
            return _call(deck, model, prompt, temperature, parameters)
    return _call(deck, model, prompt, temperature, parameters)


def _call(deck: Deck, model: str, prompt: str, temperature: float, parameters: Mapping[str, Any]) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": temperature, **parameters}
    if deck.mode is Mode.OFF:
        return _text(model, _live(deck, body, None))
    asked = deck.answer(deck.call_question(model, prompt, temperature, parameters))
    if not isinstance(asked, Recording):
        return _text(model, asked)
    take = _live(deck, body, asked)
    asked.finish(take)
    return _text(model, take)


def _text(model: str, take: Take) -> str:
    match take:
        case Said(text=text):
            return text
        case Failure(kind=kind, message=message):
            raise CallError(f"{model} could not be asked: {kind}: {message}")
        case Answer(status=status, body=body):
            shown = body[:300].decode("utf-8", "replace")
            raise CallError(f"{model} gave no text: its server answered {status}: {shown}")


def _live(deck: Deck, body: Mapping[str, Any], recording: Recording | None) -> Take:
    try:
        return _send(deck, body, recording)
    except TimeoutError as error:
        return Failure(kind="read_timeout", message=str(error))
    except (OSError, HTTPException) as error:
        return Failure(kind="connect_error", message=str(error))


def _send(deck: Deck, body: Mapping[str, Any], recording: Recording | None) -> Take:
    """Asks the chat completions API, directly or through the broker."""
    url = deck.settings.chat_url.rstrip("/") + "/chat/completions"
    parts = urlsplit(url)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    grant = deck.settings.grant_for(origin_of(parts.scheme, parts.hostname or "", parts.port))
    key = deck.credentials.get(grant.key_env) if grant and grant.key_env else None
    if grant and key:
        headers[grant.header] = grant.prefix + key
    door = doors.current()
    connection: HTTPConnection
    if door is not None:
        headers |= dict(door.headers(url, test=deck.test))
        connection = _UnixConnection(str(door.socket))
        target = "/call"
    else:
        direct = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = direct(parts.hostname or "", parts.port, timeout=TIMEOUT)
        target = parts.path
    try:
        connection.request("POST", target, json.dumps(body).encode(), headers)
        response: HTTPResponse = connection.getresponse()
        answer = response.read()
        if door is not None and recording is not None and doors.answered_by(response.getheaders()) != "live":
            declined = doors.declined(response.getheaders(), answer)
            if declined.failure is None:
                raise recording.refuse(declined.message)
            return Failure(kind=declined.failure, message=declined.message)
        return _said(response, answer)
    finally:
        connection.close()


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("broker", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket(AF_UNIX, SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(self._path)


def _said(response: HTTPResponse, body: bytes) -> Said | Answer:
    """What the model said, or the answer as it came where that is no text."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        document = json.loads(body)
        text = document["choices"][0]["message"]["content"]
        if response.status == HTTPStatus.OK and isinstance(text, str):
            return Said(text=text, usage=document.get("usage"))
    headers = tuple((name, value) for name, value in response.getheaders() if name.lower() == "content-type")
    return Answer(status=response.status, headers=headers, body=body, chunks=(len(body),))
