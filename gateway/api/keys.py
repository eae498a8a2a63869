"""API keys: who speaks, and how many calls they may have open."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from starlette.datastructures import Headers

from alipes.gateway.api.errors import ApiError, ErrorClass
from alipes.gateway.config import ApiKey


class Keyring:
    """Without configured keys everybody is the tenant ``""`` and unlimited."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._open: Counter[str] = Counter()
        self.configure(keys)

    def configure(self, keys: Sequence[ApiKey]) -> None:
        """These and no others from now on. Calls that are open stay so, and count."""
        self._keys = tuple((key.key.encode(), key) for key in keys)

    def identify(self, headers: Headers) -> ApiKey | None:
        """The key that the request carries; None when no keys are configured. Every known key
        is compared, each in constant time, so that timing tells nothing. Raises a 401."""
        if not self._keys:
            return None
        sent = _sent_key(headers)
        found = None
        for secret, key in self._keys:
            if hmac.compare_digest(secret, sent):
                found = key
        if found is None:
            what = "is not known" if sent else "is missing: send Authorization: Bearer or x-api-key"
            raise ApiError(
                401, ErrorClass.AUTHENTICATION, f"API key {what}", code="invalid_api_key"
            )
        return found

    @contextmanager
    def slot(self, key: ApiKey | None) -> Iterator[None]:
        """Hold one of the key's calls. Raises a 429 when all are taken."""
        if key is None:
            yield
            return
        if self._open[key.key] >= key.max_concurrent:
            raise ApiError(
                429,
                ErrorClass.RATE_LIMIT,
                f"this API key has {key.max_concurrent} calls open, as many as it may",
                code="concurrency_limit",
                retry_after=1.0,
            )
        self._open[key.key] += 1
        try:
            yield
        finally:
            self._open[key.key] -= 1


def _sent_key(headers: Headers) -> bytes:
    """The credential in bytes, empty for none; the bearer token goes before ``x-api-key``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip().encode("latin-1")
    return headers.get("x-api-key", "").strip().encode("latin-1")
