"""Frames: what is JSON comes back, what is none is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.sandbox.inside import wire

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(VALUES)
def test_values_come_back_and_json_reads_them_alike(value):
    data = wire.dumps(value)
    assert wire.loads(data) == json.loads(data) == value
    assert wire.loads(json.dumps(value)) == value  # with spaces between, as others write it


@given(st.dictionaries(st.text(), VALUES, min_size=1), st.binary(), st.integers(1, 9))
def test_frames_come_back_however_they_are_cut(header, body, size):
    data = wire.pack(header, body) * 2
    unpacker = wire.Unpacker()
    frames = [frame for at in range(0, len(data), size) for frame in unpacker.feed(data[at : at + size])]
    assert frames == [(header, body)] * 2


@pytest.mark.parametrize(
    "text", ["", "{", " {}", "{} ", "nul", '{"a":}', "{'a': 1}", "[" * 100_000, '{"a":' * 100_000, "9" * 5000]
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match=r"not JSON|integer string|Expecting"):
        wire.loads(text)
    frame = wire.PREFIX.pack(len(text), 0) + text.encode()
    with pytest.raises(wire.BadFrame):
        wire.Unpacker().feed(frame)


@pytest.mark.parametrize("text", ["[]", "1", '"words"', "null"])
def test_a_header_is_an_object(text):
    with pytest.raises(wire.BadFrame, match="not an object"):
        wire.Unpacker().feed(wire.PREFIX.pack(len(text), 0) + text.encode())
