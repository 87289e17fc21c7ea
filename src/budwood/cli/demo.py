"""`budwood demo`: examples in, a verified adapter out, measured on orders that training never saw."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

import budwood
from budwood.cli._render import next_commands, records
from budwood.cli._shell import Answer, Quiet
from budwood.cli.eval import beside
from budwood.cli.verify import exit_code, verdict
from budwood.errors import StorageError

MODEL = "smollm2"
ROWS = {"train": 500, "test": 100}
# As `--set` would give them; what is not here is the method's default. One pass over the rows is enough.
HYPERPARAMETERS: dict[str, Any] = {
    "tuner.rank": 16,
    "training.max_steps": 60,
    "training.evaluate_every": 30,
    "data.evaluation_rows_max": 24,
}


def demo(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The folder to write; default runs/demo.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the orders and of the training.")] = 0,
    quiet: Quiet = False,
) -> Answer:
    """Teach a model to turn orders into JSON; measure unseen orders.

    \b
    Example:
      budwood demo -o runs/demo
    """
    from budwood import _adapt, _inspect
    from budwood.evidence import Examples

    folder = out or _free(Path("runs/demo"))
    train, test = _write_rows(folder, seed)
    run = _adapt.adapt(
        MODEL,
        Examples(train),
        out=folder / "run",
        seed=seed,
        overrides=HYPERPARAMETERS,
        progress=not quiet,
    )
    measured = _inspect.evaluate(run.path, rows=test, progress=not quiet)
    report = run.verify().to_dict()
    comparison = run.summary()["comparison"]
    value = {"run": run.path, "evaluation": measured, "comparison": comparison, "verify": report}
    return Answer(
        value,
        [
            f"{ROWS['train']} orders trained on; {ROWS['test']} others, unseen, to measure. Base: {MODEL}.\n",
            beside(measured),
            "",
            records(comparison),
            f"\n{verdict(report)}",
            _after(run.path, test, folder),
        ],
        exit_code(report),
        str(run.path),
    )


def _free(folder: Path) -> Path:
    """Return `folder`, or the first of `folder-2`, `folder-3`, ... that does not exist."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(place for place in itertools.chain([folder], numbered) if not place.exists())


def _write_rows(folder: Path, seed: int) -> tuple[Path, Path]:
    from budwood.storage import write_text

    files = folder / "train.jsonl", folder / "test.jsonl"
    for file, rows in zip(files, _orders().split(ROWS["train"], ROWS["test"], seed)):
        write_text(file, "".join(json.dumps(row) + "\n" for row in rows))
    return files


def _orders() -> ModuleType:
    """Load examples/orders.py: of the source checkout, or the copy in an installed package."""
    package = Path(budwood.__file__).parent
    places = (package / "_examples" / "orders.py", package.parents[1] / "examples" / "orders.py")
    for place in filter(Path.is_file, places):
        spec = importlib.util.spec_from_file_location("budwood_orders", place)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    raise StorageError(f"the demo's orders.py is not in {places[0]}", action="install budwood again")


def _after(run: Path, test: Path, folder: Path) -> str:
    prompts = [json.loads(line)["prompt"] for line in test.read_text(encoding="utf-8").splitlines()]
    prompt = next((text for text in prompts if "'" not in text), prompts[0])  # reads better in a shell
    return next_commands(
        ["budwood", "generate", run, "--prompt", prompt],
        ["budwood", "eval", run, "--rows", test],
        ["budwood", "export", run, "--to", "lora", "-o", folder / "lora"],
    )
