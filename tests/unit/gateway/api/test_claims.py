"""Which session a request is of, by the signals of the clients in use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.datastructures import Headers

from alipes.gateway.api.claims import CLIENTS, LONGEST, claim_of, client_id
from alipes.gateway.routing.identity import NO_CLAIM, Claim, Source

UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


@pytest.mark.parametrize(
    ("headers", "session", "branch", "parent"),
    [
        ({"x-session-id": "s", "x-branch-id": "b", "x-parent-branch-id": "p"}, "s", "b", "p"),
        ({"x-dynamo-session-id": "s", "x-dynamo-parent-session-id": "p"}, "s", "", "p"),
        (
            {
                "x-claude-code-session-id": "s",
                "x-claude-code-agent-id": "b",
                "x-claude-code-parent-agent-id": "p",
            },
            "s",
            "b",
            "p",
        ),
        ({"session-id": "s", "thread-id": "b", "x-codex-window-id": "w"}, "s", "b", ""),
        ({"session-id": "s", "x-codex-window-id": "w"}, "s", "w", ""),
        ({"session_id": "s", "conversation_id": "b"}, "s", "b", ""),
        ({"x-session-affinity": "s", "x-parent-session-id": "p"}, "s", "", "p"),
        ({"x-session-id": "s", "x-parent-session-id": "p"}, "s", "", "p"),
        ({"x-opencode-session": "s"}, "s", "", ""),
        ({"x-kilocode-taskid": "s", "x-kilocode-parent-taskid": "p"}, "s", "", "p"),
        ({"x-kilo-session": "s"}, "s", "", ""),
        ({"x-roo-task-id": "s", "x-roo-root-task-id": "p"}, "s", "", "p"),
        ({"x-litellm-session-id": "s", "x-litellm-trace-id": "t"}, "s", "", ""),
        ({"x-smg-routing-key": "s"}, "s", "", ""),
    ],
)
def test_agents_are_recognised(
    headers: dict[str, str], session: str, branch: str, parent: str
) -> None:
    claim = claim_of(Headers(headers))
    assert (claim.session, claim.branch, claim.parent) == (session, branch, parent)
    own = Source.OWN if "x-session-id" in headers else Source.AGENT
    assert (claim.source, claim.weak, claim.final) == (own, False, False)


@pytest.mark.parametrize("name", ["x-litellm-trace-id", "x-correlation-id"])
def test_what_may_be_an_id_of_the_request_is_weak(name: str) -> None:
    assert claim_of({name: "t"}) == Claim("t", source=Source.AGENT, weak=True)
    assert claim_of({name: "t"}, cache_key="k") == Claim("k", source=Source.CACHE_KEY)


def test_the_strongest_signal_counts() -> None:
    headers = {"x-session-id": "own", "x-claude-code-session-id": "agent"}
    body: dict[str, Any] = {
        "body_session": "body",
        "metadata_user_id": json.dumps({"session_id": "meta"}),
        "cache_key": "key",
        "previous": Claim("before", "b", source=Source.PREFIX),
    }
    seen = [claim_of(headers, **body)]
    for name in (*headers, *body):
        headers.pop(name, None)
        body.pop(name, None)
        seen.append(claim_of(headers, **body))
    assert [(claim.session, claim.source) for claim in seen] == [
        ("own", Source.OWN),
        ("agent", Source.AGENT),
        ("body", Source.BODY),
        ("meta", Source.BODY),
        ("key", Source.CACHE_KEY),
        ("before", Source.RESPONSE),
        ("", Source.NEW),
    ]
    assert seen[-2].branch == "b"
    assert seen[-1] == NO_CLAIM


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer k", "x-api-key": "k", "cookie": "c"},
        {"x-request-id": "r", "x-client-request-id": "r", "traceparent": "t"},
        {"user": "u", "safety_identifier": "u", "x-session-id": "  "},
        {"x-branch-id": "b", "x-parent-branch-id": "p"},
    ],
)
def test_what_names_no_session_is_left_alone(headers: dict[str, str]) -> None:
    assert claim_of(headers) == NO_CLAIM


@pytest.mark.parametrize(
    ("user_id", "session"),
    [
        (json.dumps({"device_id": "d", "account_uuid": "a", "session_id": UUID}), UUID),
        (f"user_0123abcd_account_{UUID}_session_s-1", "s-1"),
        (f"user_0123abcd_account__session_{UUID}", UUID),
        (json.dumps({"device_id": "d"}), ""),
        (json.dumps({"session_id": 7}), ""),
        ("{not json", ""),
        ('{"session_id": "\\ud800"}', ""),
        ("user-17", ""),
        ("[" * 9999, ""),
        ({"session_id": "s"}, ""),
        (None, ""),
    ],
)
def test_a_user_id_is_read_only_as_claude_code_writes_it(user_id: Any, session: str) -> None:
    assert claim_of({}, metadata_user_id=user_id).session == session


@pytest.mark.parametrize("value", [7, True, [], {}, None, "", " \t "])
def test_body_fields_of_other_types_count_for_nothing(value: Any) -> None:
    assert claim_of({}, body_session=value, cache_key=value) == NO_CLAIM


@pytest.mark.parametrize(
    ("name", "value", "final"),
    [
        ("x-session-final", "true", True),
        ("x-session-final", " True ", True),
        ("x-dynamo-session-final", "1", True),
        ("x-session-final", "false", False),
        ("x-session-final", "", False),
    ],
)
def test_the_last_call_says_so(name: str, value: str, final: bool) -> None:
    assert claim_of({"x-session-id": "s", name: value}).final is final


def test_a_proxys_session_keeps_the_branches_of_the_agent_behind_it() -> None:
    headers = {"x-session-id": "proxy", "x-claude-code-agent-id": "agent"}
    assert claim_of(headers) == Claim("proxy", "agent", source=Source.OWN)
    claim = claim_of({"x-claude-code-agent-id": "agent"}, body_session="s")
    assert claim == Claim("s", "agent", source=Source.BODY)


def test_ids_are_plain_and_short_or_digests() -> None:
    assert client_id("  a/b:c  ") == "a/b:c"
    assert client_id("x" * LONGEST) == "x" * LONGEST
    strange = ["x" * (LONGEST + 1), "x" * (LONGEST + 2), "a b", "a\r\nb: c", "é", "\ud800"]
    digests = [client_id(value) for value in strange]
    assert len(set(digests)) == len(strange)
    for digest in digests:
        assert digest.isascii()
        assert len(digest) == len("digest-") + 32


def test_every_header_is_lower_case_and_means_one_thing() -> None:
    named = [name for c in CLIENTS for name in (*c.session, *c.branch, *c.parent, *c.final)]
    assert all(name == name.lower() for name in named)
    shared = {name for name in named if named.count(name) > 1}
    assert shared == {"x-parent-session-id"}
