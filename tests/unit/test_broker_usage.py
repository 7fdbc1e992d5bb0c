from __future__ import annotations

import pytest

from sealtape.broker.usage import KEPT, TokenCount

CHAT = b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}'
MESSAGES = (
    b'data: {"message":{"usage":{"input_tokens":20,"cache_read_input_tokens":9,"output_tokens":1}}}\n\n'
    b'data: {"type":"message_delta","usage":{"output_tokens":15}}\n\n'
)
RESPONSES = b'{"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":0},"output_tokens":4}}'
GENERATE = b'{"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 6, "totalTokenCount": 30}}'
QUOTING = b'{"content": "so {\\"total_tokens\\": 99} it said"}'


@pytest.mark.parametrize(
    ("body", "tokens"), [(CHAT, 12), (MESSAGES, 35), (RESPONSES, 7), (GENERATE, 30), (QUOTING, None), (b"", None)]
)
@pytest.mark.parametrize("filler", [0, KEPT // 2, KEPT * 3])
@pytest.mark.parametrize("size", [1, 1000, KEPT * 4])
def test_the_providers_own_count_is_found_at_either_end(body, tokens, filler, size):
    if size == 1:
        filler = min(filler, 2000)
    first, newline, rest = body.partition(b"\n\n")
    whole = first + newline + b" " * filler + rest
    count = TokenCount()
    for start in range(0, len(whole), size):
        count.feed(whole[start : start + size])
    assert count.total() == tokens
