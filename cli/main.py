"""The ``alipes`` command: composes everything, holds no logic."""

from __future__ import annotations

import typer

from alipes.cli.check import check
from alipes.cli.init import init
from alipes.cli.inspect import inspect
from alipes.cli.instances import drain, instance
from alipes.cli.models import models
from alipes.cli.profile import profile
from alipes.cli.replay import replay
from alipes.cli.report import report
from alipes.cli.serve import serve
from alipes.cli.simulate import simulate
from alipes.cli.trace import trace

app = typer.Typer(
    help="Serve many language models to agents from a few shared instances.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(init)
app.command()(serve)
app.command()(check)
app.command()(instance)
app.command()(inspect)
app.command()(drain)
app.command()(replay)
app.command()(profile)
app.command()(simulate)
app.command()(report)
app.add_typer(models, name="models")
app.add_typer(trace, name="trace")


def main() -> None:
    app(prog_name="alipes")


if __name__ == "__main__":
    main()
