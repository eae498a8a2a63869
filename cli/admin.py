"""What commands ask of a gateway that serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from alipes.cli.output import CommandError
from alipes.gateway.config import GatewaySettings

if TYPE_CHECKING:
    import httpx

KeyOption = Annotated[str, typer.Option(envvar="ALIPES_API_KEY", help="Key of the gateway")]
ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
SECONDS = 10.0


def ask(gateway: GatewaySettings, api_key: str, method: str, path: str) -> Any:
    """The answer's JSON. Raises ``CommandError`` when there is none or it is an error."""
    import httpx

    url = f"http://{ANY_HOST.get(gateway.host, gateway.host)}:{gateway.port}"
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.request(method, url + path, headers=headers, timeout=SECONDS)
    except httpx.HTTPError as error:
        raise CommandError(f"no gateway answers at {url} ({error}); is it serving?") from None
    if answer.is_error:
        raise CommandError(f"the gateway at {url} refuses: {_message(answer)}")
    return answer.json()


def _message(answer: httpx.Response) -> str:
    """The error's own words, in either dialect."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
