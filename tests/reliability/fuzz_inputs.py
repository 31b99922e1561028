"""What is fed to readers: any bytes, sound files that were damaged, and sound tables with a senseless value."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

WORDS = st.sampled_from(
    [
        *("path", "label", "file", ",", "\n", "\r", '"', "'", "\t", " ", "\0", "\ufeff", "=", "-1", "0", "a.png", "b"),
        *("[", "]", "{", "}", ":", "title", "classes", "1e999", "nan", "domains", "../", "/", "\\", "é", "\ud7ff"),
        *("scenario", "method", "accuracy", "seed", "tml", "none", "true", "null", "99999999999999999999", ";", "|"),
        *("\u202e", "😀", "<b>", "&amp;", "%2e", "%00", "\x1b[31m", "answer", "undo", "id", "time", "#", "\udce9"),
    ]
)
TEXTS = st.lists(WORDS, max_size=30).map("".join)
ANY_BYTES = st.one_of(st.binary(max_size=200), TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")))
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(0, 1, -1, 2**31, 2**40, 2**63, 2**64, 10**18, 10**400, -(10**400), 1e308, -1e308, 1e-300, 5e-324, 0.1, 0.5),
        *(
            "",
            "a",
            "x" * 5000,
            "none",
            "digits",
            "pretrained",
            "timm/test_resnet",
            "timm/test_vit@4096",
            "\udc80",
            "\0",
        ),
        *("timm/hf-hub:a/b", "timm/local-dir:/etc", "../../etc/passwd", "/etc", "timm/vit_7b_patch16_dinov3", "1"),
        *(None, True, False, [], {}, [[]], [0] * 3, ["a"] * 3, [1e308] * 3, [float("nan")] * 3, float("inf")),
    ]
)
JSON = st.recursive(
    VALUES | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """A sound file that was cut, overwritten, repeated or added to in some places."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(sound)))
        end = draw(st.integers(start, min(len(sound), start + 40)))
        more = draw(ANY_BYTES | st.just(b"") | st.just(sound[start:end] * 2))
        sound = sound[:start] + more + (sound[end:] if draw(st.integers(0, 3)) else b"")
    return sound


@st.composite
def changed(draw: st.DrawFn, stored: Any) -> Any:
    """A tree in which one value, at any depth, is any other, or is gone, or a new one is there."""
    if isinstance(stored, dict) and stored and draw(st.integers(0, 5)):
        name = draw(st.sampled_from(sorted(stored)))
        if draw(st.integers(0, 9)) == 0:
            return {key: value for key, value in stored.items() if key != name}
        return {**stored, name: draw(changed(stored[name]))}
    if isinstance(stored, list) and stored and draw(st.integers(0, 3)):
        place = draw(st.integers(0, len(stored) - 1))
        return [*stored[:place], draw(changed(stored[place])), *stored[place + 1 :]]
    if isinstance(stored, dict) and draw(st.booleans()):
        return {**stored, draw(st.text(max_size=8)): draw(JSON)}
    return draw(JSON)


def tree(sound: bytes) -> st.SearchStrategy[bytes]:
    """A JSON file with up to three changed values, or damaged."""
    whole = json.loads(sound)
    times = st.integers(1, 3).flatmap(lambda count: _repeatedly(whole, count))
    return times.map(lambda value: json.dumps(value).encode()) | damaged(sound)


@st.composite
def _repeatedly(draw: st.DrawFn, stored: Any, count: int) -> Any:
    for _ in range(count):
        stored = draw(changed(stored))
    return stored


@st.composite
def tensors(draw: st.DrawFn, sound: bytes) -> bytes:
    """A safetensors file whose header says something else, or that is damaged."""
    if not draw(st.integers(0, 3)):
        return draw(damaged(sound))
    length = int.from_bytes(sound[:8], "little")
    header = json.dumps(draw(changed(json.loads(sound[8 : 8 + length])))).encode()
    said = draw(st.sampled_from([len(header)] * 4 + [0, 1, 2**31, 2**63, 2**64 - 1, len(sound)]))
    body = sound[8 + length :]
    return said.to_bytes(8, "little") + header + draw(st.sampled_from([body, body, body[:-4], body + body[:8], b""]))
