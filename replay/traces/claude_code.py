"""Claude Code session logs (JSONL): a session with its sub-agents, in one file or several.

- Prompts are as long as the provider counted them (all of ``usage``'s input tokens), where it did
  for every call of a branch: the log's text lacks the system prompt and the tools. Replies are the
  larger of ``usage`` and their text, since a log may hold a count from before the end.
- A call goes on after the reply before it unless the log says that the conversation was compacted
  or taken up again at an earlier line; then it keeps what the provider served from its cache, or
  where nothing was counted, the messages that are the same.
- A sub-agent is spawned by the last call that had begun to answer when it began, and joined by
  the call after that, if that came when the sub-agent had ended.
- Sub-agents begin alike as in ``claude_sessions``. One whose session is not in the files is a
  session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from alipes.replay.traces.check import check_sessions
from alipes.replay.traces.claude_log import Drawn, Log, Said, read_logs
from alipes.replay.traces.claude_resumed import conversations, origins
from alipes.replay.traces.claude_sessions import common_beginning, first_content
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Trace, Wait
from alipes.replay.traces.model import Message, TraceError
from alipes.replay.traces.source import Source
from alipes.replay.traces.spans import new_content, one
from alipes.replay.traces.text import Count, TextBranch

AGENT = "claude-code"
SLACK = 0.001  # s; stamps are in milliseconds


@dataclass(slots=True)
class _Branch:
    """A branch's calls; call i was sent at ``begins[i]`` (s) and is reply ``drawn[i]``."""

    name: str
    calls: list[Call] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    spawned_by: int = -1

    @property
    def end(self) -> float:
        return max(drawn.end for drawn in self.drawn)


def read(sources: Sequence[Source], count: Count, warn: Callable[[Path, str], None]) -> Trace:
    """Raises ``TraceError``."""
    logs: list[Log] = []
    for source in sources:
        found = [log for log in read_logs(source.path, source.data) if log.replies]
        source.forget()
        if not found:
            problem = "holds no reply of a model"
            raise TraceError(source.path, "", problem, "give the log of a session")
        logs += found
    origin = origins(logs)
    for log in logs:
        if log.session != origin[log.session] and not log.agent:
            other = origin[log.session]
            warn(log.path, f"session {log.session} has replies of {other} in it; read as one")
    begun: list[tuple[Log, Session, float]] = []
    for branches in conversations(logs, origin):
        # Sub-agents whose session is not there are sessions of their own.
        alone = all(log.agent for log in branches)
        groups = [[log] for log in branches] if alone else [branches]
        begun += [(group[0], *_session(group, count)) for group in groups]
    first = min(begin for _, _, begin in begun)
    sessions = tuple(replace(one, start=round(begin - first, 3)) for _, one, begin in begun)
    for session, (log, _, _) in zip(sessions, begun, strict=True):
        check_sessions((session,), log.path, {session.id: log.line})
    return Trace(", ".join(dict.fromkeys(source.path.name for source in sources)), sessions)


def _session(logs: Sequence[Log], count: Count) -> tuple[Session, float]:
    """A session and when it began, s."""
    # The main branch first, if the file has it.
    logs = sorted(logs, key=lambda log: log.agent != "")
    name = logs[0].session
    if logs[0].agent:
        name = f"{name}/{logs[0].agent}"
    main, *others = (_branch(log, i, count) for i, log in enumerate(logs))
    shared = common_beginning([other.drawn[0].usage.cache_read_input_tokens for other in others])
    for other in others:
        _spawn(other, main, shared)
    _join(main, others)
    model = main.drawn[0].model
    branches = [Branch(MAIN, tuple(main.calls))]
    for other in others:
        its = other.drawn[0].model
        its = its if its != model else ""
        branches.append(Branch(other.name, tuple(other.calls), MAIN, other.spawned_by, its))
    return Session(name, tuple(branches), model, AGENT), main.begins[0]


def _branch(log: Log, number: int, count: Count) -> _Branch:
    branch = _Branch(log.agent if number else MAIN)
    text = TextBranch(count)
    measured = all(drawn.usage.prompt for drawn in log.replies.values())
    messages: list[Message] = []
    places: dict[str, int] = {}
    last: Said | None = None
    rewound = False
    for item in log.items:
        if isinstance(item, Said):
            place = _place(item, messages, places)
            rewound |= place < len(messages)
            messages[place:] = item.messages
            places[item.uuid] = len(messages)
            last = item if item.messages else last
            continue
        call = _call(branch, item, text, messages, last)
        if measured:
            call = _measured(branch, call, item, rewound)
        branch.calls.append(call)
        branch.drawn.append(item)
        messages.append(item.message)
        places.update(dict.fromkeys(item.lines, len(messages)))
        rewound = False
    return branch


def _place(said: Said, messages: Sequence[Message], places: Mapping[str, int]) -> int:
    """How many messages come before a line: all, unless the conversation was taken up again at
    an earlier one. Tool results of one reply have different parents, but no reply between."""
    if said.compaction:
        return 0
    place = places.get(said.parent or "", len(messages))
    since = messages[place:]
    taken_up = said.messages and not said.from_tool and any(m.role == "assistant" for m in since)
    return place if taken_up else len(messages)


def _call(
    branch: _Branch,
    drawn: Drawn,
    text: TextBranch,
    messages: Sequence[Message],
    last: Said | None,
) -> Call:
    """The call by its text; the times of the branch are noted."""
    begin = last.when if last else drawn.first
    gap, wait = 0.0, Wait.START
    if branch.calls:
        gap = round(max(0.0, begin - branch.drawn[-1].end), 3)
        wait = Wait.TOOL if last and last.from_tool else Wait.USER
    branch.begins.append(begin)
    thoughts = sum(map(text.count, drawn.thoughts))
    output = max(drawn.output, thoughts + text.size(drawn.message))
    return text.call(messages or [Message("user", "")], drawn.message, gap, wait, output)


def _measured(branch: _Branch, call: Call, drawn: Drawn, rewound: bool) -> Call:
    """The call with its lengths as the provider counted them."""
    prompt, index = drawn.usage.prompt, len(branch.calls)
    context = branch.calls[-1].prompt + branch.calls[-1].output if index else 0
    kept = min(context, prompt)
    if rewound:
        kept = min(kept, drawn.usage.cache_read_input_tokens)
    added = one(new_content(branch.name, index), prompt - kept)
    return replace(call, prompt=prompt, kept=kept, added=added)


def _spawn(branch: _Branch, main: _Branch, shared: int) -> None:
    """Find who spawned a sub-agent, and what its first prompt has of the others'."""
    begun = [i for i, drawn in enumerate(main.drawn) if drawn.first <= branch.begins[0] + SLACK]
    branch.spawned_by = begun[-1] if begun else 0
    first = branch.calls[0]
    gap = round(max(0.0, branch.begins[0] - main.drawn[branch.spawned_by].end), 3)
    first = replace(first, gap=gap, wait=Wait.TOOL)
    if branch.drawn[0].usage.prompt:
        first = replace(first, added=first_content(branch.name, first.prompt, shared))
    branch.calls[0] = first


def _join(main: _Branch, others: Sequence[_Branch]) -> None:
    """Let the main branch's calls wait for the sub-agents that ended before them."""
    for index in range(1, len(main.calls)):
        begin = main.begins[index]
        joins = [
            other
            for other in others
            if other.spawned_by == index - 1 and other.end <= begin + SLACK
        ]
        if joins:
            gap = begin - max([main.drawn[index - 1].end, *(other.end for other in joins)])
            names = tuple(other.name for other in joins)
            call = main.calls[index]
            gap = round(max(0.0, gap), 3)
            main.calls[index] = replace(call, gap=gap, wait=Wait.BRANCH, joins=names)
