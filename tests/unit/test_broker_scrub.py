from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealtape.broker.scrub import Scrubber, patterns_of, scrub

KEY = 'sk-a/b+c="d"-\u00e9f'
PATTERNS = patterns_of(KEY)

WRITTEN = {
    "plain": KEY.encode(),
    "url-encoded": quote(KEY, safe="").encode(),
    "url-encoded but for slashes": quote(KEY).encode(),
    "url-encoded in lower case": re.sub("%..", lambda escape: escape[0].lower(), quote(KEY, safe="")).encode(),
    "JSON": json.dumps(KEY)[1:-1].encode(),
    "base64": base64.b64encode(KEY.encode()),
}


def parts(data: bytes, cuts: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in pairwise([0, *sorted(min(cut, len(data)) for cut in cuts), len(data)])]


@pytest.mark.parametrize("form", WRITTEN)
def test_a_key_is_replaced_in_every_form_at_the_same_length(form):
    secret = WRITTEN[form]
    assert scrub(b"<" + secret + b">", PATTERNS) in (
        b"<" + b"x" * len(secret) + b">",
        # The last base64 digits may say more about what follows than about the key.
        b"<" + b"x" * (len(secret) - 3) + secret[-3:] + b">",
        b"<" + b"x" * (len(secret) - 4) + secret[-4:] + b">",
    )


@pytest.mark.parametrize("user", ["", "u", "us", "use"])
def test_a_key_is_found_inside_longer_base64(user):
    whole = base64.b64encode(f"{user}:{KEY}:more".encode())
    assert b"x" * 16 in scrub(whole, PATTERNS)
    assert len(scrub(whole, PATTERNS)) == len(whole)


pieces = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(list(WRITTEN.values())),
    # Beginnings and ends of the key, which must pass, and must not hide a whole one that follows.
    st.builds(lambda at: KEY.encode()[:at], st.integers(0, len(KEY))),
    st.builds(lambda at: KEY.encode()[at:], st.integers(0, len(KEY))),
)


@given(data=st.lists(pieces, max_size=6).map(b"".join), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_however_a_stream_is_cut_it_comes_out_as_when_whole(data, cuts):
    scrubber = Scrubber(PATTERNS)
    out = b"".join(scrubber.feed(part) for part in parts(data, cuts)) + scrubber.end()
    assert out == scrub(data, PATTERNS)
    assert len(out) == len(data)
    assert not any(pattern in out for pattern in PATTERNS)


@given(data=st.text("ab", max_size=40).map(str.encode), cuts=st.lists(st.integers(0, 40), max_size=8))
def test_secrets_that_overlap_are_each_replaced_whole(data, cuts):
    overlapping = [b"aba", b"bab", b"abba", b"aabab"]
    scrubber = Scrubber(overlapping)
    out = b"".join(scrubber.feed(part) for part in parts(data, cuts)) + scrubber.end()
    assert out == scrub(data, overlapping)
    assert not any(pattern in out for pattern in overlapping)


def test_only_what_may_begin_a_key_is_held_back():
    scrubber = Scrubber([b"sk-secret"])
    assert scrubber.feed(b'data: "hello"\n\n') == b'data: "hello"\n\n'
    assert scrubber.feed(b"ask") == b"a"
    assert scrubber.feed(b"-sec") == b""
    assert scrubber.feed(b"ond") == b"sk-second"
    assert scrubber.feed(b"sk-secre") == b""
    assert scrubber.feed(b"t!") == b"xxxxxxxxx!"
    assert scrubber.feed(b"sk-") == b""
    assert scrubber.end() == b"sk-"


def test_without_a_key_everything_passes():
    scrubber = Scrubber([])
    assert scrubber.feed(b"anything") == b"anything"
    assert scrubber.end() == b""
