"""The border between a command and the terminal: the shared flags, where output goes, what each failure becomes.

Standard output carries the answer and nothing else: what libraries and child processes print meanwhile, logs,
warnings and progress go to standard error. Every failure passes `Shell.main`: a known error is shown with its own exit
code, any other one is a bug of budwood (exit code 1) with its traceback under `-v`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from budwood.cli._process import is_verbose, wants_json
from budwood.errors import BudwoodError, InterruptedRunError, UsageError, nearest

if TYPE_CHECKING:
    from rich.console import RenderableType

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the result: its path, or the answer on a line.")]


@dataclass(frozen=True)
class Answer:
    """What a command found.

    Args:
        value: the object that `--json` prints.
        body: what people see instead, in order: texts and rich renderables.
        exit_code: of the process; 0 unless the answer itself is bad news.
        brief: what `-q` prints in place of the body: the path or the answer, on one line; None prints the body.
    """

    value: dict[str, Any]
    body: Sequence[RenderableType]
    exit_code: int = 0
    brief: str | None = None


class InternalError(BudwoodError):
    """An exception that nobody raised on purpose."""

    exit_code = 1


def _shared(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    quiet: Quiet = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, show_default=False, help="Logs of libraries, tracebacks; -vv: more."
        ),
    ] = 0,
) -> None:
    """The flags of every command."""


SHARED = inspect.signature(_shared, eval_str=True).parameters


def command(function: Callable[..., Answer]) -> Callable[..., int]:
    """Give `function` the shared flags, and print the answer it returns. It may take `quiet` itself."""
    own = inspect.signature(function, eval_str=True).parameters

    @functools.wraps(function)
    def run(**values: Any) -> int:
        try:
            with answer_only(), _logs(values["quiet"], values["verbose"]):
                answer = function(**{name: values[name] for name in own})
        except KeyboardInterrupt as error:
            raise InterruptedRunError("interrupted") from error
        _show(answer, values["as_json"], values["quiet"])
        return answer.exit_code

    everything = [*own.values(), *(flag for name, flag in SHARED.items() if name not in own)]
    run.__signature__ = inspect.Signature(everything, return_annotation=int)  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def answer_only() -> Iterator[None]:
    """Send to standard error what this process and its children print to standard output."""
    sys.stdout.flush()
    standard_output = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(standard_output, 1)
        os.close(standard_output)


@contextlib.contextmanager
def _logs(quiet: bool, verbose: int) -> Iterator[None]:
    """Log to standard error: budwood's notes unless `quiet`, other libraries and Python's warnings if `verbose`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s" if verbose else "%(message)s"))
    root, ours = logging.getLogger(), logging.getLogger("budwood")
    before = root.level, ours.level
    root.addHandler(handler)
    root.setLevel((logging.ERROR, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    ours.setLevel(logging.DEBUG if verbose else logging.ERROR if quiet else logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        root.setLevel(before[0])
        ours.setLevel(before[1])


def _show(answer: Answer, as_json: bool, quiet: bool) -> None:
    if as_json:
        _print_json(answer.value)
        return
    body = [answer.brief] if quiet and answer.brief is not None else answer.body
    from rich.console import Console

    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    for part in body:  # in a pipe a row stays on its line, however long it is
        console.print(part, soft_wrap=isinstance(part, str) or not console.is_terminal)


def _print_json(value: dict[str, Any]) -> None:
    """Print `value` on one line; paths become strings, and NaN, which JSON does not have, becomes null."""
    import pydantic_core

    plain = pydantic_core.to_jsonable_python(value, inf_nan_mode="null", serialize_unknown=True)
    print(json.dumps(plain, allow_nan=False), flush=True)


class Group(TyperGroup):
    """A group of commands that answers an unknown name with the nearest one and the full list."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise UsageError(
                f"there is no command `{ctx.command_path} {args[0]}`",
                wanted=nearest(args[0], self.list_commands(ctx)),
                action=f"see `{ctx.command_path} --help`",
            )
        return super().resolve_command(ctx, args)


class Shell(Group):
    """The outermost group: every failure ends here, as a message and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(args, "budwood", complete_var, False, windows_expand_args, **extra)
        except typer.TyperException as error:
            code = _fail(_usage_error(error), words)
        except BudwoodError as error:
            code = _fail(error, words)
        except Exception as error:
            code = _fail(_internal_error(error, words), words)
        sys.exit(code)


def _fail(error: BudwoodError, words: Sequence[str]) -> int:
    print(f"error: {error}", file=sys.stderr)
    if wants_json(words):
        _print_json({"error": error.to_dict()})
    return error.exit_code


def _usage_error(error: typer.TyperException) -> UsageError:
    """Say in our words what the parser found; an unknown flag is answered with the nearest one."""
    got, wanted = error.format_message().rstrip("."), ""
    details = vars(error)
    context = details.get("ctx")
    if context and "possibilities" in details:  # only an unknown flag has them
        got = f"`{context.command_path}` has no flag {details['option_name']}"
        flags = [name for parameter in context.command.get_params(context) for name in parameter.opts]
        wanted = nearest(details["option_name"], [name for name in flags if name.startswith("--")])
    return UsageError(got, wanted=wanted, action=f"see `{context.command_path if context else 'budwood'} --help`")


def _internal_error(error: Exception, words: Sequence[str]) -> InternalError:
    action = "report it, with the traceback above"
    if is_verbose(words):
        traceback.print_exception(error)
    else:
        action = "run the same command with -v for the traceback, and report it"
    return InternalError(f"this is a bug of budwood: {type(error).__name__}: {error}", action=action)
