"""Ways to damage a world: each makes a function without arguments that works in the current folder."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[], None]


def nothing() -> None:
    """No damage."""


def every(*damages: Damage) -> Damage:
    """One after the other."""

    def do() -> None:
        for damage in damages:
            damage()

    return do


def written(path: str, content: str | bytes) -> Damage:
    """A file with this content."""

    def do() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content.encode() if isinstance(content, str) else content)

    return do


def cut(path: str, share: float = 0.5) -> Damage:
    """A file that ends too early."""

    def do() -> None:
        content = Path(path).read_bytes()
        Path(path).write_bytes(content[: int(len(content) * share)])

    return do


def flipped(path: str) -> Damage:
    """One bit near the end of a file is another."""

    def do() -> None:
        content = bytearray(Path(path).read_bytes())
        content[-10] ^= 0x10
        Path(path).write_bytes(content)

    return do


def poisoned(path: str, value: float = float("nan")) -> Damage:
    """The last number of the floating-point tensors of a safetensors file is another."""

    def do() -> None:
        import safetensors.torch

        content = Path(path).read_bytes()
        tensors = safetensors.torch.load(content)
        name = max(name for name in tensors if tensors[name].is_floating_point() and tensors[name].numel())
        tensors[name].view(-1)[-1] = value
        size = struct.unpack("<Q", content[:8])[0]
        about = json.loads(content[8 : 8 + size]).get("__metadata__")
        Path(path).write_bytes(safetensors.torch.save(tensors, metadata=about))

    return do


def gone(*paths: str) -> Damage:
    """Files and folders that are not there any more."""

    def do() -> None:
        for path in paths:
            if Path(path).is_dir():
                shutil.rmtree(path)
            else:
                Path(path).unlink()

    return do


def said(path: str, **changes: Any) -> Damage:
    """A JSON file in which some keys have other values."""

    def do() -> None:
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
        Path(path).write_text(json.dumps({**stored, **changes}), encoding="utf-8")

    return do


def put(path: str, old: str, new: str) -> Damage:
    """A text file in which a word, which must be there, is another."""

    def do() -> None:
        text = Path(path).read_text(encoding="utf-8")
        assert old in text, f"{path} has no {old!r}: the damage of this row does nothing"
        Path(path).write_text(text.replace(old, new, 1), encoding="utf-8")

    return do


def cell(path: str, column: str, value: str) -> Damage:
    """A CSV table whose first row has another value in a column."""

    def do() -> None:
        head, first, *rest = Path(path).read_text(encoding="utf-8").split("\n")
        values = first.split(",")
        values[head.split(",").index(column)] = value
        Path(path).write_text("\n".join([head, ",".join(values), *rest]), encoding="utf-8")

    return do


def kept(folder: str, *names: str) -> Damage:
    """A folder of which only some files or folders are left."""

    def do() -> None:
        for path in Path(folder).iterdir():
            if path.name not in names:
                gone(str(path))()

    return do


def copied(path: str, to: str) -> Damage:
    """A file or folder in a second place."""

    def do() -> None:
        Path(to).parent.mkdir(parents=True, exist_ok=True)
        if Path(path).is_dir():
            shutil.copytree(path, to)
        else:
            shutil.copy(path, to)

    return do


def moved(path: str, to: str) -> Damage:
    """A file or folder under another name."""

    def do() -> None:
        shutil.move(path, to)

    return do


def linked(path: str, to: str) -> Damage:
    """A symbolic link, to something that is there or not."""

    def do() -> None:
        Path(path).symlink_to(to)

    return do


def piped(path: str) -> Damage:
    """A pipe that no one writes into: who opens it waits for ever."""

    def do() -> None:
        os.mkfifo(path)

    return do


def broken_images(folder: str) -> Damage:
    """Every image in or below a folder is text."""

    def do() -> None:
        for path in Path(folder).rglob("*.*g"):
            path.write_text("not an image")

    return do


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch hacked",)


def evil_pickle(path: str) -> Damage:
    """A pickle that would make the file `hacked`."""
    return lambda: written(path, pickle.dumps(_Evil()))()


def bomb(path: str) -> Damage:
    """A small PNG file that says of itself that it is 60,000 by 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return written(path, b"\x89PNG\r\n\x1a\n" + head + body)
