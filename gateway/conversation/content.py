"""The text of content in whatever blocks a dialect has for it.

What a text model can read is read. The rest becomes a short text that tells what was there, the
same bytes at every turn: nothing in the history of a session may end it. Only where a client hands
over a picture or a file just now is it told that no model here can see it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from alipes.gateway.text.errors import TextError

_TEXTS: Final = ("text", "refusal", "thinking", "transcript")
_MEDIA: Final = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "document": "file",
    "file": "file",
    "input_file": "file",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
}
_LONGEST: Final = 200
_DEPTH: Final = 8


def text_of(content: Any, place: str, handed: bool = False) -> str:
    """The text of ``content``: a string, a list of blocks, one block, or None for none.

    ``handed`` where a user hands it over in the last message: then a picture or file raises
    ``TextError``, as does content of another type at any time; both name ``place``."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Mapping):
        return _block(content, place, handed, 0)
    if not isinstance(content, list):
        raise TextError(place, "must be a string or a list of content blocks")
    return _blocks(content, place, handed, 0)


def _blocks(blocks: list[Any], place: str, handed: bool, depth: int) -> str:
    pieces = (_piece(block, f"{place}[{i}]", handed, depth) for i, block in enumerate(blocks))
    return "\n".join(piece for piece in pieces if piece is not None)


def _piece(block: Any, place: str, handed: bool, depth: int) -> str | None:
    if block is None or isinstance(block, str):
        return block
    if not isinstance(block, Mapping):
        raise TextError(place, "is not a content block")
    return _block(block, place, handed, depth)


def _block(block: Mapping[str, Any], place: str, handed: bool, depth: int) -> str:
    kind = block.get("type")
    if not isinstance(kind, str):
        kind = "text" if isinstance(block.get("text"), str) else "block"
    if kind in _MEDIA:
        return _medium(_MEDIA[kind], block, place, handed, depth)
    if kind == "tool_reference":
        return f"[tool {_short(block.get('tool_name') or block.get('name'))}]"
    if kind == "search_result":
        return _search_result(block, place, depth)
    if kind.endswith("text") or kind in _TEXTS:
        return _own_text(block, kind, place)
    return _unknown(block, kind, place, depth)


def _own_text(block: Mapping[str, Any], kind: str, place: str) -> str:
    text = block.get(kind if kind in _TEXTS else "text", block.get("text"))
    if text is not None and not isinstance(text, str):
        raise TextError(f"{place}.text", "is not a string")
    return text or ""


def _unknown(block: Mapping[str, Any], kind: str, place: str, depth: int) -> str:
    """Its text where it has one, as all kinds of text have; else its name."""
    if isinstance(block.get("text"), str):
        return str(block["text"])
    content = block.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list) and depth < _DEPTH and all(map(_readable, content)):
        return _blocks(content, f"{place}.content", False, depth + 1)
    return f"[{_short(kind)}]"


def _readable(block: Any) -> bool:
    return isinstance(block, Mapping) and isinstance(block.get("text"), str)


def _search_result(block: Mapping[str, Any], place: str, depth: int) -> str:
    lines = [str(block[name]) for name in ("title", "source") if isinstance(block.get(name), str)]
    content = block.get("content")
    if isinstance(content, str):
        lines.append(content)
    elif isinstance(content, list) and depth < _DEPTH:
        lines.append(_blocks(content, f"{place}.content", False, depth + 1))
    return "\n".join(lines)


def string_of(value: Any) -> str:
    """A field that should be a string; "" for anything else."""
    return value if isinstance(value, str) else ""


# --- pictures and files --------------------------------------------------------------------------


def _medium(kind: str, block: Mapping[str, Any], place: str, handed: bool, depth: int) -> str:
    source = _source(block)
    if source.get("type") == "content" and depth < _DEPTH:
        inner = source.get("content")
        if isinstance(inner, str):
            return inner
        if isinstance(inner, list):
            return _blocks(inner, f"{place}.source.content", handed, depth + 1)
    media, data, address = _parts(block, source)
    if kind == "file" and (text := _plain(source, media, data)) is not None:
        return text
    if handed:
        raise TextError(place, f"is a {kind}; the models here read text only", "unsupported")
    told = [kind]
    told += [media] if media else []
    told += [address] if address else []
    size = f", {_bytes_in(data)} bytes" if data else ""
    return f"[{' '.join(told)}{size}]"


def _source(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the dialects put what is shown: under ``source``, or a name like the block's own."""
    for name in ("source", "image_url", "video_url", "input_audio", "file", "audio"):
        if isinstance(block.get(name), Mapping):
            return block[name]  # type: ignore[no-any-return]
    return {}


def _parts(block: Mapping[str, Any], source: Mapping[str, Any]) -> tuple[str, str, str]:
    """Media type, base64 data, and an address or name, each "" if unknown."""
    media = _first(source, block, ("media_type", "mime_type", "format"))
    data = _first(source, block, ("data", "file_data"))
    address = _first(source, block, ("url", "image_url", "file_url", "video_url"))
    for value in (data, address):
        if value.startswith("data:"):
            head, _, body = value[5:].partition(",")
            media, data, address = head.partition(";")[0] or media, body, ""
    name = _first(source, block, ("filename", "file_id", "title"))
    return _short(media), data, _short(address or name)


def _first(source: Mapping[str, Any], block: Mapping[str, Any], names: tuple[str, ...]) -> str:
    values = (place.get(name) for name in names for place in (source, block))
    return next((value for value in values if isinstance(value, str) and value), "")


def _plain(source: Mapping[str, Any], media: str, data: str) -> str | None:
    """The text of a file that is one."""
    if source.get("type") == "text":
        return data
    if not media.startswith("text/"):
        return None
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _bytes_in(data: str) -> int:
    """Bytes that so much base64 stands for."""
    return len(data.rstrip("=")) * 3 // 4


def _short(value: Any) -> str:
    line = " ".join(string_of(value).split())
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "..."
