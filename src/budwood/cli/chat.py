"""`budwood chat`: talk to an adapted model, in a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budwood.cli._flags import Base, ForceBase, RunPath
from budwood.cli._shell import Answer, Quiet, answer_only
from budwood.errors import DataError, InterruptedRunError

if TYPE_CHECKING:
    from budwood._chat import Conversation

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
HELP = "/reset begins anew, /exit or Ctrl-D ends"


def chat(
    run: RunPath,
    base: Base = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message.")] = None,
    max_new_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="The longest answer.")] = 512,
    temperature: Annotated[float, typer.Option(metavar="X", min=0.0, help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the draws, at a temperature above 0.")] = 0,
    force: ForceBase = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Talk to an adapted model; in a pipe, a line in, an answer out.

    Each turn sees those before it. In a terminal /reset begins anew, /exit or Ctrl-D ends. In a pipe an answer is one
    line: its line breaks are written as \\n, and a line that asks nothing is answered by an empty one.

    \b
    Example:
      budwood chat runs/first
    """
    from budwood import _chat

    conversation = _chat.open_conversation(
        run,
        base=base,
        system=system,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        force=force,
    )
    if sys.stdin.isatty():
        return Answer({"turns": _talk(conversation, quiet)}, [])
    turns = _turns(conversation)
    if as_json:
        return Answer({"turns": list(turns)}, [])
    # Lazily, so that each answer is printed before the next line is read.
    return Answer({}, (_on_one_line(turn["answer"]) for turn in turns))  # type: ignore[arg-type]


def _talk(conversation: Conversation, quiet: bool) -> list[dict[str, Any]]:
    """Talk in a terminal; answers appear on standard error as they are written. Return the turns."""
    if not quiet:
        print(HELP)
    turns: list[dict[str, Any]] = []
    while (text := _typed()) is not None:
        try:
            if turn := _turn(conversation, text, lambda piece: print(piece, end="", flush=True)):
                turns.append(turn)
                print()
        except DataError as error:  # mostly: the conversation has filled the context
            print(f"error: {error}\n  {HELP}")
    return turns


def _typed() -> str | None:
    """Return the next line that is typed, or None at the end."""
    try:
        text = input("> ").strip()
    except EOFError:
        print()
        return None
    return None if text == "/exit" else text


def _turns(conversation: Conversation) -> Iterator[dict[str, Any]]:
    """Answer the lines of standard input as they come, one for one: what asks nothing gets an empty answer."""
    for line in sys.stdin:
        if line.strip() == "/exit":
            return
        try:
            with answer_only():
                turn = _turn(conversation, line.strip(), lambda piece: None)
        except KeyboardInterrupt as error:
            raise InterruptedRunError("interrupted") from error
        yield turn or {"user": line.strip(), "answer": "", "tokens": 0, "ended": True}


def _turn(conversation: Conversation, text: str, on_text: Callable[[str], None]) -> dict[str, Any] | None:
    if text == "/reset":
        conversation.reset()
    if not text or text == "/reset":
        return None
    made = conversation.ask(text, on_text)
    return {"user": text, "answer": made.text, "tokens": len(made.ids), "ended": made.ended}


def _on_one_line(answer: str) -> str:
    return answer.replace("\n", "\\n").replace("\r", "\\r")
