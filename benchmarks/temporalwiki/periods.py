"""The periods of a folder: probes of what changed and of what did not, and the text that changed, if it is there.

The texts of TemporalWiki (Jang et al., 2022, https://arxiv.org/abs/2204.14211) are not part of this project.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from budwood.data.documents import make_windows, read_documents
from budwood.data.files import read_records
from budwood.data.offsets import OffsetTokens
from budwood.data.probes import Probe, encode_probes
from budwood.data.render import Encoded
from budwood.errors import DataError
from budwood.methods.taalm.passages import Passage, from_window

KINDS = ("unchanged", "changed")
WINDOW = 64  # tokens


@dataclass(frozen=True)
class Period:
    """A month and what is asked about it.

    Attributes:
        name: such as 0901-1001.
        probes: for each of `KINDS` the probes, with labels at the object.
        passages: windows of the text that changed; none where there is no text.
    """

    name: str
    probes: dict[str, tuple[Encoded, ...]]
    passages: tuple[Passage, ...]

    @property
    def rows(self) -> list[Encoded]:
        return [*(passage.encoded for passage in self.passages), *(row for kind in KINDS for row in self.probes[kind])]


def read_periods(folder: Path, tokens: OffsetTokens, *, most: int) -> list[Period]:
    """Read a folder.

    Args:
        folder: as the command's documentation says.
        tokens: of the base.
        most: probes of a kind and period, drawn with a fixed seed.

    Raises:
        DataError: no periods, one of the two files of probes is missing, or a row is no fact.
    """
    ends = {kind: f"_{kind}.jsonl" for kind in KINDS}
    names = sorted({path.name.removesuffix(end) for end in ends.values() for path in folder.glob(f"*{end}")})
    if not names:
        raise DataError(f"{folder} holds no periods", wanted="PERIOD_changed.jsonl and PERIOD_unchanged.jsonl")
    return [
        Period(
            name,
            {kind: tuple(_probes(folder / f"{name}_{kind}.jsonl", tokens, most)) for kind in KINDS},
            tuple(_passages(folder, name, tokens)),
        )
        for name in names
    ]


def digest(folder: Path) -> str:
    """Return the SHA-256 of all files, with their names."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(folder)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _probes(path: Path, tokens: OffsetTokens, most: int) -> list[Encoded]:
    probes = []
    for record in read_records(path):
        row = record.values
        parts = [row.get(name) for name in ("subject", "relation", "object")]
        if not all(isinstance(part, str) and part.strip() for part in parts):
            raise DataError(f"{record.origin}: the row is no fact", wanted='{"subject", "relation", "object"}')
        head = f"Name the object.\nsubject: {parts[0]} ; relation: {parts[1]} ; object: "
        probes.append(Probe(head + str(parts[2]), (len(head), len(head) + len(str(parts[2]))), record.origin))
    chosen = sorted(Random(0).sample(range(len(probes)), min(most, len(probes))))
    return encode_probes([probes[i] for i in chosen], tokens)


def _passages(folder: Path, name: str, tokens: OffsetTokens) -> Sequence[Passage]:
    places = [place for place in (folder / name, folder / f"{name}.jsonl") if place.exists()]
    if not places:
        return ()
    documents = read_documents(places).documents
    return [from_window(window) for window in make_windows(documents, tokens, max_tokens=WINDOW, with_heading=False)]
