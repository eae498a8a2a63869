"""What is kept of a session: its branches, and the prompts that their calls ended with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from alipes.gateway.routing.identity import Source
from alipes.gateway.routing.paths import TokenPath, common_prefix
from alipes.gateway.routing.prefixes import Place, Sums, may_begin
from alipes.instance.contract import TokenIds

_ID_BYTES: Final = 16


@dataclass(slots=True, eq=False)
class Record:
    """A finished call of ``branch``. Its next call is to begin with the first ``length`` ids of
    its prompt, filed under ``place``; with the reply too, less its last id, filed under ``end``,
    where the template writes that as the model did. The whole ``path``, reply included, is kept
    while there is room; afterwards ``digest`` stands for the ``length`` ids. ``number`` rises from
    record to record of a table."""

    branch: Branch
    length: int
    place: Place
    end: Place
    path: TokenPath | None
    number: int
    digest: bytes = b""

    @property
    def cost(self) -> int:
        """Bytes that can be had back by ``compact``."""
        return self.path.cost if self.path is not None else 0

    def known(self, tokens: TokenIds) -> int:
        """How many of ``tokens`` were in this call, as far as they go on from it; else 0."""
        if not 0 < self.length <= len(tokens):
            return 0
        if self.path is None:
            return self.length if _digest(tokens[: self.length]) == self.digest else 0
        shared = common_prefix(self.path.tokens, tokens)
        return shared if shared >= self.length else 0

    def shared(self, tokens: TokenIds) -> int:
        """How many of ``tokens`` are surely the beginning of this call's prompt and reply."""
        if self.path is None:
            return self.known(tokens)
        return common_prefix(self.path.tokens, tokens)

    def sealed(self) -> bytes:
        """The digest, computed once. Any thread may ask for it, whatever happens here meanwhile:
        where ``path`` is gone, ``digest`` has been there before."""
        path = self.path
        if path is not None and not self.digest:
            self.digest = _digest(path.tokens[: self.length])
        return self.digest

    def compact(self) -> None:
        self.sealed()
        self.path = None


def _digest(tokens: TokenIds) -> bytes:
    data = tokens.astype("<i4", copy=False).tobytes()
    return hashlib.blake2b(data, digest_size=_ID_BYTES).digest()


@dataclass(slots=True, eq=False)
class Branch:
    """One context of a session on one model, with at most one call at a time: calls that overlap
    under one name are branches of their own, told apart by ``serial``."""

    session: Session
    name: str
    parent: str
    model: str
    serial: int
    id: bytes = field(init=False)
    records: list[Record] = field(default_factory=list)
    busy: bool = False
    calls: int = 0
    finished: int = 0
    instance: str = ""
    cached_tokens: int = 0
    prefix_tokens: int = 0
    used: int = 0

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(digest_size=_ID_BYTES, person=b"alipes-branch")
        names = (self.session.tenant, self.session.id, self.name, self.model, str(self.serial))
        for name in names:
            part = name.encode("utf-8", "surrogatepass")
            digest.update(len(part).to_bytes(4, "little"))
            digest.update(part)
        self.id = digest.digest()


@dataclass(slots=True, eq=False)
class Session:
    """``id`` is unique in its tenant; ``used`` is when a call last began or ended."""

    tenant: str
    id: str
    source: Source
    used: int
    branches: dict[tuple[str, str], list[Branch]] = field(default_factory=dict)
    in_flight: int = 0
    over: bool = False

    def under(self, name: str, model: str) -> list[Branch]:
        return self.branches.get((name, model), [])

    def all(self) -> list[Branch]:
        return [branch for group in self.branches.values() for branch in group]

    def add(self, name: str, parent: str, model: str) -> Branch:
        group = self.branches.setdefault((name, model), [])
        taken = {branch.serial for branch in group}
        serial = next(number for number in range(len(group) + 1) if number not in taken)
        branch = Branch(self, name, parent, model, serial)
        group.append(branch)
        return branch

    def origin(self, branch: Branch) -> Branch | None:
        """The branch that this one began from: the first of its parent's name."""
        named = (other for other in self.all() if other.name == branch.parent)
        return next((other for other in named if other is not branch), None)

    def remove(self, branch: Branch) -> None:
        group = self.branches[branch.name, branch.model]
        group.remove(branch)
        if not group:
            del self.branches[branch.name, branch.model]


def longest_known(
    branches: Iterable[Branch], tokens: TokenIds, sums: Sums
) -> tuple[Record | None, int]:
    """The record from which ``tokens`` go on with most of them known, and how many those are.
    Only what ``sums`` leave in question is compared: there may be very many records."""
    best: Record | None = None
    most = 0
    for branch in branches:
        for record in branch.records:
            if not may_begin(record.place, record.length, tokens, sums):
                continue
            known = record.known(tokens)
            if known > most:
                best, most = record, known
    return best, most
