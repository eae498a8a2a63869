from __future__ import annotations

import logging

import pytest

from alipes.gateway.fleet.output import forwarded


@pytest.mark.parametrize(
    ("line", "level", "told"),
    [
        ("INFO cold-0 builds its engine", logging.INFO, "cold-0 builds its engine"),
        ("ERROR cold-0: device cuda: none here", logging.ERROR, "cold-0: device cuda: none here"),
        ("WARNING a context is long", logging.WARNING, "cold-0: a context is long"),
        ("INFO cold-01 is another", logging.INFO, "cold-0: cold-01 is another"),
        ("Traceback (most recent call last):", logging.INFO, "cold-0: Traceback (most recent"),
        ("INFO", logging.INFO, "cold-0: INFO"),
        ("", logging.INFO, "cold-0: "),
    ],
)
def test_lines_of_a_process_keep_their_level_and_have_its_name_once(
    line: str, level: int, told: str
) -> None:
    found, message = forwarded("cold-0", line)
    assert found == level
    assert message.startswith(told)
