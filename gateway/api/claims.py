"""What a request says of its session: headers and body fields of the agents in use.

Never read: credentials, ``x-request-id``, ``user`` and ``safety_identifier``. They name a tenant,
an end user or a single request, and as session ids would join strangers or part relatives.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from alipes.gateway.routing.identity import NO_CLAIM, Claim, Source

LONGEST: Final = 128
_PLAIN: Final = re.compile(rf"[\x21-\x7e]{{1,{LONGEST}}}")
_OLD_USER: Final = re.compile(r"user_[^_]*_account_.*_session_(?P<session>[0-9A-Za-z-]+)")
_TRUE: Final = frozenset(("true", "1", "yes"))


class Names(NamedTuple):
    """The headers of one kind of client; of several for the same thing the first counts."""

    session: tuple[str, ...]
    branch: tuple[str, ...] = ()
    parent: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    source: Source = Source.AGENT
    weak: bool = False


CLIENTS: Final = (
    Names(
        ("x-session-id",),
        ("x-branch-id",),
        ("x-parent-branch-id", "x-parent-session-id"),
        ("x-session-final",),
        Source.OWN,
    ),
    Names(
        ("x-dynamo-session-id",),
        parent=("x-dynamo-parent-session-id",),
        final=("x-dynamo-session-final",),
    ),
    Names(
        ("x-claude-code-session-id",),
        ("x-claude-code-agent-id",),
        ("x-claude-code-parent-agent-id",),
    ),
    Names(("session-id", "session_id"), ("thread-id", "x-codex-window-id", "conversation_id")),
    Names(("x-opencode-session", "x-session-affinity"), parent=("x-parent-session-id",)),
    Names(("x-kilocode-taskid", "x-kilo-session"), parent=("x-kilocode-parent-taskid",)),
    Names(("x-roo-task-id",), parent=("x-roo-root-task-id",)),
    Names(("x-litellm-session-id",)),
    Names(("x-smg-routing-key",)),
    Names(("x-litellm-trace-id", "x-correlation-id"), weak=True),
)
"""In the order of precedence."""


def claim_of(
    headers: Mapping[str, str],
    *,
    body_session: Any = None,
    cache_key: Any = None,
    metadata_user_id: Any = None,
    previous: Claim | None = None,
) -> Claim:
    """The claim of a request, from the strongest signal that it has. ``headers`` have lower-case
    names; the body's values may be anything. ``previous`` is the session and branch of the
    response that the request continues, where it names one."""
    found = next(_claims(headers, body_session, cache_key, metadata_user_id, previous), NO_CLAIM)
    final = any(_is_true(headers.get(name, "")) for names in CLIENTS for name in names.final)
    return replace(found, final=final)


def client_id(value: Any) -> str:
    """A client's id without blanks around it; a digest of one that is long or no plain ASCII,
    and "" for what is no id."""
    text = value.strip() if isinstance(value, str) else ""
    if not text or _PLAIN.fullmatch(text):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    return f"digest-{digest.hexdigest()}"


def _claims(
    headers: Mapping[str, str],
    body_session: Any,
    cache_key: Any,
    metadata_user_id: Any,
    previous: Claim | None,
) -> Iterator[Claim]:
    """All there are, the strongest first."""
    named = [names for names in CLIENTS if _first(headers, names.session)]
    yield from (_header_claim(headers, names) for names in named if not names.weak)
    # An agent may tell its session in the body and its branch in a header.
    branch, parent = _branch_of(headers, CLIENTS)
    for value, source in (
        (body_session, Source.BODY),
        (_claude_session(metadata_user_id), Source.BODY),
        (cache_key, Source.CACHE_KEY),
    ):
        if session := client_id(value):
            yield Claim(session, branch, parent, source=source)
    if previous is not None:
        yield replace(previous, source=Source.RESPONSE)
    yield from (_header_claim(headers, names) for names in named if names.weak)


def _header_claim(headers: Mapping[str, str], names: Names) -> Claim:
    session = _first(headers, names.session)
    branch, parent = _branch_of(headers, (names, *CLIENTS))
    return Claim(session, branch, parent, source=names.source, weak=names.weak)


def _branch_of(headers: Mapping[str, str], clients: Iterable[Names]) -> tuple[str, str]:
    """Branch and parent by the first client whose headers name either; a proxy may add a session
    of its own to the branches of an agent behind it."""
    for names in clients:
        branch, parent = _first(headers, names.branch), _first(headers, names.parent)
        if branch or parent:
            return branch, parent
    return "", ""


def _first(headers: Mapping[str, str], names: Iterable[str]) -> str:
    return next((found for name in names if (found := client_id(headers.get(name)))), "")


def _is_true(value: str) -> bool:
    return value.strip().lower() in _TRUE


def _claude_session(user_id: Any) -> str:
    """The session inside Claude Code's ``metadata.user_id``, in both its forms; any other user
    id names a user and no session."""
    if not isinstance(user_id, str):
        return ""
    old = _OLD_USER.fullmatch(user_id)
    if old is not None:
        return old["session"]
    try:
        parsed = msgspec.json.decode(user_id) if user_id.startswith("{") else None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ""
    return client_id(parsed.get("session_id")) if isinstance(parsed, dict) else ""
