"""The SDKs as people use them, against a server that speaks their wire format."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anthropic
import anyio
import openai
import pytest

from sealtape.errors import CassetteMiss

if TYPE_CHECKING:
    from conftest import Asked, Origin, Tape, Wire

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
CLAUDE_TOOL = {"name": "look_up", "input_schema": {"type": "object", "properties": {}}}
CHAT: dict[str, Any] = {"model": "gpt-test", "messages": [{"role": "user", "content": "Hi"}]}
CLAUDE: dict[str, Any] = {**CHAT, "model": "claude-test", "max_tokens": 20}


@pytest.fixture(autouse=True)
def providers(origin: Origin, wire: Wire) -> None:
    """Gives the origin the two providers' endpoints. Ids and times differ in every answer."""

    def number() -> int:
        return len(origin.asked)

    def chat(_: Origin, asked: Asked) -> Any:
        body = asked.json()
        head = {"id": f"chatcmpl-{number()}", "created": number(), "model": body["model"]}
        if body.get("stream"):
            deltas = [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo \U0001f600"}, {}]
            return wire.chunked(
                wire.events(
                    *(
                        {
                            **head,
                            "object": "chat.completion.chunk",
                            "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}],
                        }
                        for delta in deltas
                    ),
                    done=True,
                )
            )
        message: dict[str, Any] = {"role": "assistant", "content": "Hello"}
        if body.get("tools"):
            call = {"id": f"call_{number()}", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if body.get("tools") else "stop"}
        usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
        return wire.json({**head, "object": "chat.completion", "choices": [choice], "usage": usage})

    def messages(_: Origin, asked: Asked) -> Any:
        body = asked.json()
        whole = {
            "id": f"msg_{number()}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text", "text": "Hello"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 2, "output_tokens": 1},
        }
        if body.get("stream"):
            return wire.chunked(
                wire.events(
                    {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
                    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                    {"type": "ping"},
                    *(
                        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
                        for text in ("Hel", "lo \U0001f600")
                    ),
                    {"type": "content_block_stop", "index": 0},
                    {
                        "type": "message_delta",
                        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                        "usage": {"output_tokens": 2},
                    },
                    {"type": "message_stop"},
                    named=True,
                )
            )
        if body.get("tools"):
            call = {"type": "tool_use", "id": f"toolu_{number()}", "name": "look_up", "input": {"id": 7}}
            whole |= {"content": [call], "stop_reason": "tool_use"}
        return wire.json(whole)

    origin.routes["/v1/chat/completions"] = chat
    origin.routes["/v1/messages"] = messages
    origin.routes["/v1/embeddings"] = lambda *_: wire.json(
        {
            "object": "list",
            "model": "e",
            "data": [{"object": "embedding", "index": 0, "embedding": "AACAPwAAAEA="}],
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }
    )
    origin.routes["/v1/audio/transcriptions"] = lambda _, asked: wire.json({"text": f"{len(asked.body) > 100}"})


def gpt(tape: Tape, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{tape.origin.url}/v1", api_key=tape.key, max_retries=5, **more)


def claude(tape: Tape, **more: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=tape.origin.url, api_key=tape.key, max_retries=5, **more)


def gpt_plain(tape: Tape) -> Any:
    with gpt(tape) as client:
        return client.chat.completions.create(**CHAT)


def gpt_tool(tape: Tape) -> Any:
    with gpt(tape) as client:
        return client.chat.completions.create(**CHAT, tools=[TOOL])


def gpt_stream(tape: Tape) -> Any:
    with gpt(tape) as client:
        return list(client.chat.completions.create(**CHAT, stream=True))


def gpt_async(tape: Tape) -> Any:
    async def run() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{tape.origin.url}/v1", api_key=tape.key) as client:
            plain = await client.chat.completions.create(**CHAT)
            return [plain, *[event async for event in await client.chat.completions.create(**CHAT, stream=True)]]

    return asyncio.run(run())


def gpt_raw(tape: Tape) -> Any:
    with gpt(tape) as client:
        raw = client.chat.completions.with_raw_response.create(**CHAT)
        return raw.status_code, raw.headers.raw, raw.content


def gpt_embeddings(tape: Tape) -> Any:
    with gpt(tape) as client:
        return client.embeddings.create(model="e", input="Hi")


def gpt_upload(tape: Tape) -> Any:
    with gpt(tape) as client:
        return client.audio.transcriptions.create(model="whisper-1", file=("a.wav", bytes(range(256))))


def claude_plain(tape: Tape) -> Any:
    with claude(tape) as client:
        return client.messages.create(**CLAUDE)


def claude_tool(tape: Tape) -> Any:
    with claude(tape) as client:
        return client.messages.create(**CLAUDE, tools=[CLAUDE_TOOL])


def claude_stream(tape: Tape) -> Any:
    with claude(tape) as client, client.messages.stream(**CLAUDE) as stream:
        return [*stream.text_stream, stream.get_final_message()]


def claude_async(tape: Tape) -> Any:
    async def run() -> Any:
        async with anthropic.AsyncAnthropic(base_url=tape.origin.url, api_key=tape.key) as client:
            plain = await client.messages.create(**CLAUDE)
            async with client.messages.stream(**CLAUDE) as stream:
                return [plain, *[text async for text in stream.text_stream], await stream.get_final_message()]

    return asyncio.run(run())


USES = [
    gpt_plain,
    gpt_tool,
    gpt_stream,
    gpt_async,
    gpt_raw,
    gpt_embeddings,
    gpt_upload,
    claude_plain,
    claude_tool,
    claude_stream,
    claude_async,
]
Use = Callable[["Tape"], Any]


@pytest.mark.parametrize("use", USES)
def test_replay_gives_the_same_objects(tape: Tape, use: Use) -> None:
    live, played = tape.twice(lambda: use(tape))
    assert live
    assert played == live
    for path in tape.folder.rglob("*"):
        assert tape.key.encode() not in (path.read_bytes() if path.is_file() else b"")


def test_what_the_objects_say_is_what_the_server_said(tape: Tape) -> None:
    with tape.session("record"):
        assert gpt_plain(tape).choices[0].message.content == "Hello"
        assert gpt_tool(tape).choices[0].message.tool_calls[0].function.name == "look_up"
        assert "".join(event.choices[0].delta.content or "" for event in gpt_stream(tape)) == "Hello \U0001f600"
        assert claude_plain(tape).content[0].text == "Hello"
        assert claude_tool(tape).content[0].input == {"id": 7}
        *texts, final = claude_stream(tape)
        assert "".join(texts) == final.content[0].text == "Hello \U0001f600"
    texts = sorted(document.get("text") or "" for document in tape.documents())
    assert texts == ["", "Hello", "Hello", "Hello \U0001f600", "Hello \U0001f600", "look_up{}"]
    assert not any(take.get("partial") for document in tape.documents() for take in document["takes"])


def test_recording_again_what_says_the_same_changes_no_file(tape: Tape) -> None:
    def all_of_it() -> None:
        for use in (gpt_plain, gpt_tool, gpt_stream, claude_plain, claude_tool, claude_stream):
            use(tape)

    with tape.session("record"):
        all_of_it()
    before = {path: path.read_bytes() for path in tape.folder.iterdir()}
    with tape.session("record"):
        all_of_it()
    assert len(tape.origin.asked) == 12
    assert {path: path.read_bytes() for path in tape.folder.iterdir()} == before


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The sleeps that were asked for: an SDK that retries sleeps before it does."""
    slept: list[float] = []

    async def asleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(anyio, "sleep", asleep)
    return slept


@pytest.mark.parametrize("use", USES)
def test_a_miss_leaves_at_once_without_a_retry(tape: Tape, use: Use, no_waiting: list[float]) -> None:
    with tape.session("replay") as deck, pytest.raises(CassetteMiss) as caught:
        use(tape)
    assert "no recording for POST" in str(caught.value)
    assert [event.kind for event in deck.events] == ["missed"]
    assert no_waiting == []
    assert tape.origin.asked == []


@pytest.mark.parametrize(
    ("use", "error"),
    [(gpt_plain, openai.APIConnectionError), (claude_plain, anthropic.APIConnectionError)],
)
def test_a_dead_server_is_what_they_do_retry(
    tape: Tape, use: Use, error: type[Exception], no_waiting: list[float]
) -> None:
    tape.origin.stop()
    with tape.session("off"), pytest.raises(error):
        use(tape)
    assert len(no_waiting) == 5


def test_another_key_gets_its_own_401(tape: Tape, wire: Wire) -> None:
    def guarded(_: Origin, asked: Asked) -> bytes:
        good = asked.headers["authorization"] == f"Bearer {tape.key}"
        return wire.json({"error": {"message": "no such key"}}, "200 OK" if good else "401 Unauthorized")

    tape.origin.routes["/v1/chat/completions"] = guarded

    def use() -> str:
        with openai.OpenAI(base_url=f"{tape.origin.url}/v1", api_key="wrong", max_retries=0) as client:
            try:
                client.chat.completions.create(**CHAT)
            except openai.AuthenticationError as error:
                return error.message
        return "no error"

    live, played = tape.twice(use)
    assert played == live
    assert "no such key" in live
