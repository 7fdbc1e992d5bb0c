"""What a person wants to know of a recording: model, prompt, text, usage. For review and for misses."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sealtape.cassette.key import parse_json
from sealtape.cassette.model import Answer, Failure, Question, Said, Take

# The fields in which the providers' APIs carry what the model is told.
PROMPT_FIELDS = ("system", "instructions", "systemInstruction", "messages", "prompt", "input", "contents", "texts")


def model_of(question: Question) -> str | None:
    """The model that is asked, from the body or, as some APIs have it, from the path."""
    model = question.subject.get("model")
    if isinstance(model, str):
        return model
    _, found, rest = str(question.data.get("url", "")).partition("/models/")
    return rest.partition(":")[0] if found else None


def prompt_of(question: Question) -> str:
    """All text the model is told, one message after the other. Empty where there is none."""
    subject = question.subject
    return "\n".join(text for name in PROMPT_FIELDS if name in subject for text in _texts(subject[name]))


def prompt_sha(question: Question) -> str | None:
    """The SHA-256 of the prompt, in hex. None where there is no prompt."""
    prompt = prompt_of(question)
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest() if prompt else None


def text_of(take: Take) -> str | None:
    """What the model said. None where the take says nothing in a form that is known here."""
    match take:
        case Said(text=text):
            return text
        case Failure(after=None):
            return None
        case Failure(after=Answer() as answer) | (Answer() as answer):
            return "".join(text for document in documents(answer) for text in _said(document)) or None
    return None


def usage_of(take: Take) -> Mapping[str, Any] | None:
    """The tokens that the provider counted, as it put them."""
    if isinstance(take, Said):
        return take.usage
    answer = take.after if isinstance(take, Failure) else take
    usage: dict[str, Any] = {}
    for document in documents(answer) if answer else ():
        inner = document.get("response") or document.get("message")
        for holder in (inner if isinstance(inner, dict) else {}, document):
            found = holder.get("usage") or holder.get("usageMetadata")
            if isinstance(found, dict):
                usage |= found
    return usage or None


def documents(answer: Answer) -> Iterator[dict[str, Any]]:
    """The JSON objects of an answer: one of a JSON body, one per event of a stream."""
    try:
        text = answer.body.decode("utf-8")
        if (answer.header("content-type") or "").startswith("text/event-stream"):
            # Not splitlines(): a model's text may hold the other characters that it takes for line ends.
            candidates = [line[5:].strip() for line in re.split(r"\r\n|\r|\n", text) if line.startswith("data:")]
        else:
            candidates = [text]
    except UnicodeDecodeError:
        return
    for candidate in candidates:
        if candidate.startswith("{"):
            try:
                document = parse_json(candidate)
            except ValueError:
                continue
            yield document


def event_texts(text: str) -> list[str]:
    """A server-sent event stream, cut after each event. The pieces join to the text again."""
    return [event for event in re.findall(r".*?(?:\r\n\r\n|\n\n|\r\r|\Z)", text, re.DOTALL) if event]


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for name in ("role", "content", "text", "parts", "input", "output", "arguments", "function", "tool_calls"):
                if name != "role" and name in value:
                    yield from _texts(value[name])


def _said(document: Mapping[str, Any]) -> Iterator[str]:
    """The text in one document of an answer, whole or as one delta of a stream."""
    for choice in _dicts(document.get("choices")):
        part = choice.get("message") or choice.get("delta") or choice
        yield from _strings(part, "content", "text")
        for call in _dicts(part.get("tool_calls") if isinstance(part, dict) else None):
            yield from _strings(call.get("function"), "name", "arguments")
    kind = document.get("type")
    if kind == "content_block_delta" or kind in _TEXT_DELTAS:
        delta = document.get("delta")
        yield from [delta] if isinstance(delta, str) else _strings(delta, "text", "partial_json")
    elif "choices" not in document and kind in (None, "message"):
        for part in _dicts(document.get("content")):
            yield from _strings(part, "text")
        for output in _dicts(document.get("output")):
            for part in _dicts(output.get("content")):
                yield from _strings(part, "text")
        for candidate in _dicts(document.get("candidates")):
            content = candidate.get("content")
            for part in _dicts(content.get("parts") if isinstance(content, dict) else None):
                yield from _strings(part, "text")
        yield from _strings(document.get("message"), "content")
    if isinstance(document.get("error"), dict):
        yield from _strings(document["error"], "message")


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _strings(value: Any, *names: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name in names:
            if isinstance(value.get(name), str):
                yield value[name]


# What differs between two answers that say the same: minted per request, or measured.
_MINTED = (
    "created",
    "created_at",
    "completed_at",
    "system_fingerprint",
    "usage",
    "usageMetadata",
    "responseId",
    "obfuscation",
    "sequence_number",
)
_MINTED_IDS = ("id", "call_id", "item_id")
# What a tool is called with: an id in there is what the model said.
_SAID_TO_TOOLS = ("input", "args")
_TEXT_DELTAS = ("response.output_text.delta", "response.function_call_arguments.delta")
_ANTHROPIC_EVENTS = ("message_start", "message_delta", "content_block_start", "content_block_delta")


def essence(take: Take) -> Any:
    """A take without what a provider mints anew for every request: ids, times, counts, chunking.

    Two takes of equal essence say the same, and re-recording keeps the older. Ids are only
    dropped where the document is a model's answer; in any other API an id may be the answer.
    """
    if isinstance(take, Said):
        return ("said", take.text)
    if isinstance(take, Failure):
        return ("failure", take.kind, essence(take.after) if take.after else None)
    kind = (take.header("content-type") or "").partition(";")[0]
    read = list(documents(take))
    if not any(map(_is_models, read)):
        return ("bytes", take.status, kind, take.header("location"), take.body, take.partial)
    lasting = [_lasting(document) for document in read]
    if kind == "text/event-stream":
        # The texts are joined: how many tokens came in one event is chance.
        shapes = sorted({json.dumps(_without_text(document), sort_keys=True) for document in lasting})
        return ("stream", take.status, text_of(take), shapes, take.partial)
    return ("json", take.status, json.dumps(lasting, sort_keys=True), take.partial)


def _is_models(document: Mapping[str, Any]) -> bool:
    """Whether a document is a model's answer, or an event of one."""
    kind = document.get("type")
    if isinstance(kind, str) and (kind in _ANTHROPIC_EVENTS or kind.startswith("response.")):
        return True
    names_a_model = any(name in document for name in ("model", "modelVersion", "usageMetadata"))
    return names_a_model and any(
        name in document for name in ("choices", "output", "candidates", "usage", "usageMetadata", "done")
    )


def _lasting(document: Mapping[str, Any]) -> dict[str, Any]:
    lasting = {name: value for name, value in document.items() if name not in _MINTED}
    for name in ("response", "message"):
        if isinstance(lasting.get(name), dict):
            lasting[name] = {k: v for k, v in lasting[name].items() if k not in _MINTED}
    return {name: _without_ids(value) for name, value in lasting.items() if name not in _MINTED_IDS}


def _without_ids(value: Any) -> Any:
    match value:
        case list():
            return [_without_ids(item) for item in value]
        case dict():
            return {
                name: item if name in _SAID_TO_TOOLS else _without_ids(item)
                for name, item in value.items()
                if name not in _MINTED_IDS
            }
    return value


def _without_text(value: Any) -> Any:
    match value:
        case list():
            return [_without_text(item) for item in value]
        case dict():
            said: tuple[str, ...] = ("content", "text", "arguments", "partial_json")
            if value.get("type") in _TEXT_DELTAS:
                said = (*said, "delta")
            return {
                name: None if name in said and isinstance(item, str) else _without_text(item)
                for name, item in value.items()
            }
    return value
