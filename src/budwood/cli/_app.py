"""The list of commands. Importing it imports no torch: a command loads the library when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from budwood import __version__
from budwood.cli import (
    adapt,
    chat,
    compress,
    config,
    data,
    demo,
    doctor,
    eval,
    export,
    generate,
    methods,
    plan,
    prepare,
    report,
    verify,
)
from budwood.cli._shell import Group, Shell, command

app = typer.Typer(
    cls=Shell,
    help="Adapt a pretrained Transformer with what you have, and get a small verified adapter.",
    epilog="Exit codes: 0 ok, 2 usage or data, 3 training failed, 4 verification failed, 130 interrupted.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def budwood(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(f"budwood {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _group(name: str, purpose: str) -> typer.Typer:
    group = typer.Typer(cls=Group, rich_markup_mode=None)
    app.add_typer(group, name=name, help=purpose)
    return group


data_app = _group("data", "Look at rows as training would see them.")
config_app = _group("config", "Recipes: their schema, the presets, what they come to.")

app.command("demo")(command(demo.demo))
app.command("doctor")(command(doctor.doctor))
app.command("methods")(command(methods.methods))
data_app.command("check")(command(data.check))
data_app.command("show")(command(data.show))
app.command("plan")(command(plan.plan))
app.command("adapt")(command(adapt.adapt))
app.command("prepare")(command(prepare.prepare))
app.command("eval")(command(eval.evaluate))
app.command("generate")(command(generate.generate))
app.command("chat")(command(chat.chat))
app.command("verify")(command(verify.verify))
app.command("export")(command(export.export))
app.command("compress")(command(compress.compress))
app.command("report")(command(report.report))
config_app.command("schema")(command(config.schema))
config_app.command("presets")(command(config.presets))
config_app.command("show")(command(config.show))
