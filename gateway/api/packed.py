"""Compressed request bodies."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import zstandard

from alipes.gateway.api.errors import ApiError, ErrorClass

CODINGS: Final = ("gzip", "deflate", "zstd")
_STEP: Final = 1 << 20
_MOST: Final = 2


def unpacked(body: bytes, coding: str, limit: int) -> bytes:
    """``body`` as it was before it was packed by ``coding``, a ``content-encoding``; of several,
    divided by commas, the last was applied last. Never makes more than ``limit`` + 1 bytes: a
    longer result is that long, also where another coding is left. Raises a 415 for a coding that is
    not known here and for more than two, a 400 for data that is not of it."""
    names = [part.strip().lower() for part in coding.split(",")]
    names = [name for name in reversed(names) if name not in ("", "identity")]
    if len(names) > _MOST:
        raise _unsupported(f"{len(names)} codings are too many; send at most {_MOST}")
    for name in names:
        unpack = _UNPACKERS.get(name.removeprefix("x-"))
        if unpack is None:
            known = ", ".join(CODINGS)
            raise _unsupported(f"{name[:64]!r} is not known; send identity or one of {known}")
        try:
            body = unpack(body, limit)
        except (zlib.error, zstandard.ZstdError, EOFError) as error:
            message = f"body: is not {name}: {error}"
            raise ApiError(400, ErrorClass.INVALID, message, "body", "invalid_encoding") from None
        if len(body) > limit:
            break
    return body


def _unsupported(problem: str) -> ApiError:
    message = f"content-encoding: {problem}"
    return ApiError(415, ErrorClass.INVALID, message, "content-encoding", "unsupported_encoding")


def _inflated(body: bytes, limit: int, window: int) -> bytes:
    stream = zlib.decompressobj(window)
    out = stream.decompress(body, limit + 1)
    if len(out) <= limit and not stream.eof:
        raise EOFError("it breaks off")
    return out


def _gzip(body: bytes, limit: int) -> bytes:
    return _inflated(body, limit, zlib.MAX_WBITS | 16)


def _deflate(body: bytes, limit: int) -> bytes:
    """With the zlib header, as HTTP wants it, or without, as some clients send it."""
    try:
        return _inflated(body, limit, zlib.MAX_WBITS)
    except zlib.error:
        return _inflated(body, limit, -zlib.MAX_WBITS)


def _zstd(body: bytes, limit: int) -> bytes:
    out = bytearray()
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
        body, read_across_frames=True
    ) as reader:
        while len(out) <= limit and (piece := reader.read(min(_STEP, limit + 1 - len(out)))):
            out += piece
    if not out and body:
        raise EOFError("it breaks off")
    return bytes(out)


_UNPACKERS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
}
