"""``alipes serve`` with a placement policy to compare with: ``POLICY FILE``.

The cluster file can turn the router's mechanisms off; the policies that it is measured against
are for measurements alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

from alipes.cli.cluster import load, prepare_models, served_models
from alipes.cli.serve import launch_specs
from alipes.gateway.app import serve_gateway
from alipes.gateway.routing.decision import Policy


def main(policy: Policy, file: Path) -> None:
    cluster = load(file)
    folders = prepare_models(cluster, served_models(cluster))
    serve_gateway(cluster, folders, launch_specs(cluster, file), announce, policy=policy)


def announce(url: str) -> None:
    print(f"ready: {url}", flush=True)


if __name__ == "__main__":
    name, path = sys.argv[1:]
    if name not in get_args(Policy):
        sys.exit(f"{name!r} is not one of {', '.join(get_args(Policy))}")
    main(name, Path(path))  # type: ignore[arg-type]
