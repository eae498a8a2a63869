"""Trace files as bytes, and their lines as strictly typed rows."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, TypeVar, cast

import msgspec

from alipes.replay.traces.model import TraceError
from alipes.replay.traces.parts import UNREADABLE

T = TypeVar("T")

# What a prompt, another length and a time in milliseconds or seconds of a public format may be.
Prompt = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
Length = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Time = Annotated[float, msgspec.Meta(ge=0, lt=2**53)]


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file to be read, unpacked where its name ends in ``.gz``. Raises ``TraceError``, also for
    what goes wrong while it is read."""
    packed = path.suffix == ".gz"
    try:
        with cast(IO[bytes], gzip.open(path)) if packed else path.open("rb") as file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        remedy = "give an intact gzip file, or one whose name does not end in .gz"
        raise TraceError(path, "", f"not a whole gzip file ({error})", remedy) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(path, "", reason, "give the path of a readable trace file") from None


def bytes_of(path: Path) -> bytes:
    """The whole content of a file without the byte order mark that some editors put before UTF-8.
    Raises ``TraceError``."""
    with opened(path) as file:
        return file.read().removeprefix(codecs.BOM_UTF8)


def plain_name(path: Path) -> str:
    """The file's name without ``.gz``."""
    return path.name.removesuffix(".gz")


def stem(path: Path) -> str:
    """The file's name up to its first dot: what sessions without an id are named after."""
    return path.name.split(".", 1)[0] or path.name


def rows(
    path: Path, data: bytes, decoder: msgspec.json.Decoder[T], remedy: str
) -> Iterator[tuple[int, T]]:
    """(line number from 1, row) of every line that is not blank. ``TraceError`` names the line
    and the field that does not fit."""
    decode = decoder.decode
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line or line.isspace():
            continue
        try:
            row = decode(line)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at ")
            raise line_error(path, number, place.strip("`"), problem, remedy) from None
        except UNREADABLE as error:
            raise line_error(path, number, "", f"not valid JSON ({error})", remedy) from None
        yield number, row


def line_error(path: Path, line: int, field: str, problem: str, remedy: str) -> TraceError:
    """An error at ``field`` (``$.hash_ids[3]``, or empty) of a line."""
    place = field.removeprefix("$").removeprefix(".")
    return TraceError(path, f"line {line}: {place}" if place else f"line {line}", problem, remedy)


def scope_of(data: bytes) -> str:
    """Tells a file's hash ids from those of another file."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
