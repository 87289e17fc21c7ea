"""Pictures of the tables of `benchmarks/idp.py`, after those of arXiv 2310.00867, into a folder of SVG or PNG.

    python benchmarks/idp_pictures.py                                   # all but one, from the results alone
    python benchmarks/idp_pictures.py --model COMPRESSED --uncompressed MODEL --text F… [--work DIR] …

With the arguments that the table was made with, the layers are compared as well: what was trained is read from the
work folder, and what is not there is trained again. `benchmarks/idp/pictures.py` says what each picture shows.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning threads starve other processes
sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the folder beside this file is `benchmarks.idp`

from benchmarks._table import RESULTS, Line, digest, read, say
from benchmarks.idp import command, pictures
from benchmarks.idp.setting import Setting
from benchmarks.idp.similarity import layer_similarity
from benchmarks.idp.systems import SYSTEMS

from budwood.errors import BudwoodError, UsageError
from budwood.storage import make_folder, new_file, write_json

COMPARED = ("compressed", "bank", "mixed, max n", "prefix", "lora r=2")
TEXTS = 24  # whose layers are compared
Picture = Callable[[Sequence[Line]], list[pictures.Draw]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, say what was written, and return the exit code."""
    args = parser().parse_args(arguments)
    try:
        make_folder(args.out)
        found = tables(args.results, args.table)
        for lines in alike(found).values():
            draw(lines, {"lengths": pictures.lengths, "short-and-long": pictures.short_and_long}, args)
        for lines in found.values():
            draw(lines, {"choices": pictures.choices, "margins": pictures.margins}, args)
        if args.model:
            layers(command.setting_of(args), args)
    except BudwoodError as error:
        say(str(error))
        return error.exit_code
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the arguments of the table, and those of the pictures."""
    made = command.parser("benchmarks/idp_pictures.py", "pictures of the tables of benchmarks/idp.py")
    made.add_argument("--table", help="its name, or the beginning of it; none: all tables of the results")
    made.add_argument("--systems", nargs="+", default=COMPARED, metavar="SYSTEM", help="whose layers are compared")
    made.add_argument("--texts", type=int, default=TEXTS, help="on how many texts")
    made.add_argument("--form", choices=("svg", "png"), default="svg")
    made.add_argument("-o", "--out", type=Path, default=RESULTS / "pictures")
    return made


def tables(path: Path, wanted: str | None) -> dict[str, list[Line]]:
    """Return the lines by table.

    Raises:
        UsageError: there are none.
    """
    found: dict[str, list[Line]] = {}
    for line in read(path).values():
        if line["table"].startswith(wanted or ""):
            found.setdefault(line["table"], []).append(line)
    if not found:
        raise UsageError(f"{path} has no finished cell{f' of a table {wanted}' if wanted else ''}")
    return found


def alike(found: Mapping[str, Sequence[Line]]) -> dict[str, list[Line]]:
    """Return the lines of all tables that scored the same texts on the same models: prompts of other lengths, say."""
    groups: dict[str, list[Line]] = {}
    for lines in found.values():
        groups.setdefault(digest([lines[0][name] for name in ("models", "tokens", "domains")]), []).extend(lines)
    return groups


def draw(lines: Sequence[Line], kinds: Mapping[str, Picture], args: argparse.Namespace) -> None:
    """Draw those of the pictures for which the lines are enough, named after the first line's table."""
    for kind, panels in kinds.items():
        if made := panels(lines):
            write(args.out / f"{lines[0]['table']}-{kind}.{args.form}", pictures.drawn(made, args.form))


def layers(setting: Setting, args: argparse.Namespace) -> None:
    """Compare the layers of the systems with those of the uncompressed model, and draw that; seed 0."""
    if unknown := [name for name in args.systems if name not in SYSTEMS]:
        raise UsageError(f"there is no system {unknown[0]!r}", wanted=f"one of: {'; '.join(SYSTEMS)}")
    every = max(1, len(setting.texts) // args.texts)
    models = {name: SYSTEMS[name](setting, 0).model for name in args.systems}
    measured = layer_similarity(setting.uncompressed.model, models, setting.texts[::every])
    write_json(args.out / f"{setting.name}-similarity.json", measured)
    panels = pictures.similarity(measured)
    write(args.out / f"{setting.name}-similarity.{args.form}", pictures.drawn(panels, args.form))


def write(path: Path, content: bytes) -> None:
    """Write a picture, whole or not at all, and say so."""
    with new_file(path, replace=True) as file:
        file.write_bytes(content)
    print(path)


if __name__ == "__main__":
    raise SystemExit(main())
