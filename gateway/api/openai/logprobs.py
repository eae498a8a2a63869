"""Log probabilities in the two shapes of the OpenAI dialect."""

from __future__ import annotations

from typing import Any

from alipes.gateway.text.model import ModelText
from alipes.instance.contract import Drawn


def chat_logprobs(text: ModelText, drawn: list[Drawn]) -> dict[str, Any]:
    """The ``logprobs`` object of a chat choice."""
    return {"content": [_chat_token(text, token) for token in drawn], "refusal": None}


def _chat_token(text: ModelText, drawn: Drawn) -> dict[str, Any]:
    entry = _chat_entry(text, drawn.token, drawn.logprob)
    entry["top_logprobs"] = [_chat_entry(text, top.token, top.logprob) for top in drawn.top]
    return entry


def _chat_entry(text: ModelText, token: int, logprob: float | None) -> dict[str, Any]:
    piece, raw = text.piece(token)
    return {"token": piece, "logprob": _finite(logprob), "bytes": list(raw)}


class TextLogprobs:
    """The ``logprobs`` object of legacy completions; offsets run on over a whole choice."""

    def __init__(self, text: ModelText) -> None:
        self._text = text
        self._offset = 0

    def next(self, drawn: list[Drawn]) -> dict[str, Any]:
        pieces = [self._text.piece(token.token)[0] for token in drawn]
        offsets = []
        for piece in pieces:
            offsets.append(self._offset)
            self._offset += len(piece)
        return {
            "tokens": pieces,
            "token_logprobs": [_finite(token.logprob) for token in drawn],
            "top_logprobs": [self._top(token) for token in drawn],
            "text_offset": offsets,
        }

    def _top(self, drawn: Drawn) -> dict[str, float]:
        """The likeliest tokens and always the drawn one."""
        shown = {self._text.piece(top.token)[0]: _finite(top.logprob) for top in drawn.top}
        shown.setdefault(self._text.piece(drawn.token)[0], _finite(drawn.logprob))
        return shown


def _finite(logprob: float | None) -> float:
    """JSON has no infinity: an impossible token gets a very low number."""
    return -9999.0 if logprob is None else max(logprob, -9999.0)
