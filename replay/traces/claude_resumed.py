"""Claude Code sessions whose lines are in several logs.

A session that is taken up again (``--resume``) gets a log of its own, into which the lines so far
are copied. Logs that have replies in common are one session's; so are those of one session id, such
as the files of its sub-agents. What the logs have in common counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from alipes.replay.traces.claude_log import Drawn, Log


def origins(logs: Iterable[Log]) -> dict[str, str]:
    """The first session that each session has replies in common with, if only through others."""
    origin: dict[str, str] = {}
    owners: dict[str, list[tuple[str, Drawn]]] = {}
    for log in logs:
        origin.setdefault(log.session, log.session)
        for name, drawn in log.replies.items():
            known = owners.setdefault(name, [])
            both = {origin[owner] for owner, other in known if other.is_copy(drawn)}
            both.add(origin[log.session])
            known.append((log.session, drawn))
            if len(both) > 1:
                first = next(name for name in origin if name in both)
                origin = {name: first if of in both else of for name, of in origin.items()}
    return origin


def conversations(logs: Iterable[Log], origin: Mapping[str, str]) -> list[list[Log]]:
    """The logs by conversation, each with one log of every branch, in order of the first."""
    together: dict[str, dict[str, list[Log]]] = {}
    for log in logs:
        branches = together.setdefault(origin[log.session], {})
        branches.setdefault(log.agent, []).append(log)
    return [[_one(copies) for copies in branches.values()] for branches in together.values()]


def _one(copies: Sequence[Log]) -> Log:
    """The log of a branch that is in several, in order of time."""
    if len(copies) == 1:
        return copies[0]
    first = copies[0]
    log = Log(first.session, first.agent, first.path, first.line)
    said = set()
    for item in (item for copy in copies for item in copy.items):
        if isinstance(item, Drawn):
            log.draw(item)
        elif not item.messages or (item.when, item.messages) not in said:
            said.add((item.when, item.messages))
            log.say(item)
    log.items.sort(key=lambda item: item.when)
    return log
