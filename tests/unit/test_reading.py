from __future__ import annotations

import json
from typing import Any

import pytest

from sealtape.cassette.key import call_question, http_question
from sealtape.cassette.model import Answer, Failure, Said
from sealtape.cassette.reading import documents, essence, model_of, prompt_of, text_of, usage_of
from sealtape.config import QuestionRules

JSON = (("content-type", "application/json"),)
SSE = (("content-type", "text/event-stream; charset=utf-8"),)


def whole(document: Any, status: int = 200, headers: Any = JSON) -> Answer:
    return Answer(status=status, headers=headers, body=json.dumps(document, ensure_ascii=False).encode())


def stream(*events: Any, done: bool = True) -> Answer:
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events]
    return Answer(status=200, headers=SSE, body="".join([*lines, "data: [DONE]\n\n" * done]).encode())


def chat(text: str = "Hi", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt",
        "choices": [choice],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
        **more,
    }


def called(name: str = "look_up", arguments: str = '{"id": 7}', call_id: str = "call_1") -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return chat(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}])


def chat_chunks(*texts: str, end: str = "stop", minted: str = "chatcmpl-1") -> list[dict[str, Any]]:
    head = {"id": minted, "object": "chat.completion.chunk", "created": len(minted), "model": "gpt"}
    chunks = [{**head, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts]
    last = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": end}]}
    return [*chunks, last, {**head, "choices": [], "usage": {"total_tokens": len(texts)}}]


def response(text: str = "Hi", minted: str = "1") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": f"msg_{minted}", "role": "assistant", "status": "completed", "content": [part]}
    return {
        "id": f"resp_{minted}",
        "object": "response",
        "created_at": int(minted),
        "model": "gpt",
        "output": [item],
        "usage": {"input_tokens": 2, "output_tokens": 1, "total_tokens": 3},
    }


def response_events(*texts: str, minted: str = "1") -> list[dict[str, Any]]:
    done = response("".join(texts), minted)
    (item,) = done["output"]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    events = [
        {"type": "response.created", "response": {**done, "output": [], "usage": None}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        *({"type": "response.output_text.delta", **place, "delta": text, "obfuscation": minted} for text in texts),
        {"type": "response.output_text.done", **place, "text": "".join(texts)},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": done},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def function_events(arguments: str) -> list[dict[str, Any]]:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look_up", "arguments": arguments}
    done = {**response(), "output": [item]}
    return [
        {"type": "response.output_item.added", "item": {**item, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": arguments},
        {"type": "response.completed", "response": done},
    ]


def claude(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 2, "output_tokens": 1},
        **more,
    }


def claude_events(*texts: str, minted: str = "1") -> list[dict[str, Any]]:
    begun = claude(id=f"msg_{minted}", content=[], stop_reason=None, usage={"input_tokens": 2, "output_tokens": 1})
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}} for text in texts),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": len(texts)}},
        {"type": "message_stop"},
    ]


def gemini(text: str = "Hi", minted: str = "1") -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": text}]}
    return {
        "candidates": [{"content": content, "finishReason": "STOP"}],
        "usageMetadata": {"totalTokenCount": 3},
        "modelVersion": "gemini-1",
        "responseId": minted,
    }


@pytest.mark.parametrize(
    ("take", "text", "usage"),
    [
        (whole(chat()), "Hi", {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}),
        (stream(*chat_chunks("H", "i")), "Hi", {"total_tokens": 2}),
        (whole(called()), 'look_up{"id": 7}', {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}),
        (whole(response()), "Hi", {"input_tokens": 2, "output_tokens": 1, "total_tokens": 3}),
        (stream(*response_events("H", "i")), "Hi", {"input_tokens": 2, "output_tokens": 1, "total_tokens": 3}),
        (
            stream(*function_events('{"id": 7}')),
            '{"id": 7}',
            {"input_tokens": 2, "output_tokens": 1, "total_tokens": 3},
        ),
        (whole(claude()), "Hi", {"input_tokens": 2, "output_tokens": 1}),
        (stream(*claude_events("H", "i"), done=False), "Hi", {"input_tokens": 2, "output_tokens": 2}),
        (whole(gemini()), "Hi", {"totalTokenCount": 3}),
        (stream(gemini("H"), gemini("i"), done=False), "Hi", {"totalTokenCount": 3}),
        (whole({"error": {"message": "no such model"}}, 404), "no such model", None),
        (Said(text="Hi", usage={"total_tokens": 3}), "Hi", {"total_tokens": 3}),
        (Failure(kind="read_timeout"), None, None),
        (Failure(kind="read_error", after=stream(*chat_chunks("H")[:1], done=False)), "H", None),
        (Answer(status=200, headers=JSON, body=b"[1, 2]"), None, None),
        (Answer(status=200, headers=JSON, body=b"\xff"), None, None),
        (Answer(status=204), None, None),
    ],
)
def test_text_and_usage(take: Any, text: str | None, usage: Any) -> None:
    assert (text_of(take), usage_of(take)) == (text, usage)


def test_a_line_separator_in_a_text_does_not_cut_an_event() -> None:
    assert text_of(stream(*chat_chunks("a\u2028b\x85c"))) == "a\u2028b\x85c"
    crlf = Answer(status=200, headers=SSE, body=b'data: {"a": 1}\r\n\r\ndata: {"a": 2}\r\n\r\n')
    assert list(documents(crlf)) == [{"a": 1}, {"a": 2}]


def asked(url: str, body: Any) -> Any:
    headers = [("content-type", "application/json")]
    return http_question("POST", url, headers, json.dumps(body).encode(), rules=QuestionRules())


@pytest.mark.parametrize(
    ("question", "model", "prompt"),
    [
        (asked("https://a/v1", {"model": "gpt", "messages": [{"role": "user", "content": "Hello"}]}), "gpt", "Hello"),
        (
            asked("https://a/v1", {"model": "c", "system": "Be kind.", "messages": [{"content": [{"text": "Hello"}]}]}),
            "c",
            "Be kind.\nHello",
        ),
        (
            asked("https://a/v1", {"model": "gpt", "instructions": "Be kind.", "input": "Hello"}),
            "gpt",
            "Be kind.\nHello",
        ),
        (
            asked("https://a/v1beta/models/gemini-1:generateContent", {"contents": [{"parts": [{"text": "Hello"}]}]}),
            "gemini-1",
            "Hello",
        ),
        (asked("https://a/v1/embeddings", {"model": "e", "input": ["one", "two"]}), "e", "one\ntwo"),
        (call_question("m", "Hello", 0.0, {}), "m", "Hello"),
        (asked("https://a/v1", {"colour": "red"}), None, ""),
    ],
)
def test_model_and_prompt(question: Any, model: str | None, prompt: str) -> None:
    assert (model_of(question), prompt_of(question)) == (model, prompt)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (whole(chat()), whole(chat(id="chatcmpl-2", created=9, system_fingerprint="fp_2", usage={"total_tokens": 9}))),
        (whole(chat()), whole(chat(), headers=(*JSON, ("date", "Mon, 01 Jan 2026"), ("x-request-id", "2")))),
        (whole(called()), whole(called(call_id="call_2"))),
        (whole(response()), whole(response(minted="2"))),
        (whole(claude()), whole(claude(id="msg_2", usage={"input_tokens": 9}))),
        (whole(gemini()), whole(gemini(minted="2"))),
        (stream(*chat_chunks("H", "i")), stream(*chat_chunks("Hi", minted="chatcmpl-22"))),
        (stream(*response_events("H", "i")), stream(*response_events("Hi", minted="2"))),
        (stream(*claude_events("H", "i")), stream(*claude_events("Hi", minted="2"))),
        (stream(gemini("H"), gemini("i")), stream(gemini("Hi", minted="2"))),
    ],
)
def test_what_a_provider_mints_makes_no_other_answer(one: Answer, two: Answer) -> None:
    assert essence(one) == essence(two)


def tool_use(**given: Any) -> Answer:
    return whole(claude(content=[{"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": given}]))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (whole(chat("Yes")), whole(chat("No"))),
        (whole(chat()), whole(chat(), status=201)),
        (whole(chat()), whole(chat(choices=[{**chat()["choices"][0], "finish_reason": "length"}]))),
        (whole(called()), whole(called(name="delete"))),
        (whole(called()), whole(called(arguments='{"id": 8}'))),
        (tool_use(id=7), tool_use(id=8)),
        (whole(response("Yes")), whole(response("No"))),
        (stream(*chat_chunks("Yes")), stream(*chat_chunks("No"))),
        (stream(*chat_chunks("Yes")), stream(*chat_chunks("Yes", end="length"))),
        (stream(*response_events("Yes")), stream(*response_events("No"))),
        (stream(*function_events('{"id": 7}')), stream(*function_events('{"id": 8}'))),
        (stream(*claude_events("Yes")), stream(*claude_events("No"))),
        # APIs that are no model's: there, any field may be the answer.
        (whole({"id": 1, "name": "a"}), whole({"id": 2, "name": "a"})),
        (whole({"id": 1, "model": "Golf"}), whole({"id": 2, "model": "Golf"})),
        (stream({"text": "a"}, done=False), stream({"text": "b"}, done=False)),
        (stream({"n": 1}, {"n": 2}, done=False), stream({"n": 2}, {"n": 1}, done=False)),
        (stream({"n": 1}, done=False), stream({"n": 1}, {"n": 1}, done=False)),
        (Answer(status=302, headers=(("Location", "/a"),)), Answer(status=302, headers=(("Location", "/b"),))),
        (Answer(status=200, body=b"a"), Answer(status=200, body=b"b")),
        (Answer(status=200, body=b"a"), Answer(status=200, body=b"a", partial=True)),
        (Said(text="a"), Said(text="b")),
        (Failure(kind="read_timeout"), Failure(kind="read_error")),
        (Failure(kind="read_error"), Failure(kind="read_error", after=whole(chat()))),
    ],
)
def test_what_a_reader_would_notice_makes_another_answer(one: Any, two: Any) -> None:
    assert essence(one) != essence(two)
