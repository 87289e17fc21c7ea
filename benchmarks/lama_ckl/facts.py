"""The facts of the table: windows of text around an object, and two probes of each. Their text is not part of this
project: LAMA is CC BY-NC 4.0, so it serves to measure only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from budwood.data.fact_checks import foils, without_repeats
from budwood.data.facts import Fact
from budwood.data.files import read_records
from budwood.data.offsets import NOWHERE, OffsetTokens, Span
from budwood.data.probes import encode_probes
from budwood.data.render import Encoded
from budwood.data.synthetic import generate
from budwood.errors import DataError
from budwood.methods.taalm.passages import Passage, from_texts

FIELDS = ("relation", "subject", "object", "evidence_window", "object_span_in_window")
PROBES = ("task_descriptive", "task_schematic")


@dataclass(frozen=True)
class Facts:
    """Encoded facts, one entry a fact in each.

    Attributes:
        objects: what is to be learned, as a text.
        passages: windows of text.
        targets: characters of the object in the window; (0, 0) where it is not in there.
        descriptive, schematic: probes with labels at the object.
        foils: the descriptive probe about the subject of another fact of the relation, None where there is none.
    """

    objects: tuple[str, ...]
    passages: tuple[Passage, ...]
    targets: tuple[Span, ...]
    descriptive: tuple[Encoded, ...]
    schematic: tuple[Encoded, ...]
    foils: tuple[Encoded | None, ...]

    def __len__(self) -> int:
        return len(self.objects)

    def __add__(self, other: Facts) -> Facts:
        return Facts(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values())))


def load_facts(
    folder: Path, split: str, tokens: OffsetTokens, *, within: bool = False, most: int | None = None
) -> Facts:
    """Read a split.

    Args:
        folder: with `SPLIT.jsonl` files.
        split: the name of one.
        tokens: of the base.
        within: only the facts whose subject and object lie in the window.
        most: of the facts of a relation with one object take the first so many.

    Raises:
        DataError: the file is missing or a row is no such fact.
    """
    facts, windows = [], []
    for record in read_records(folder / f"{split}.jsonl"):
        row = record.values
        if missing := [name for name in (*FIELDS, *PROBES) if name not in row]:
            raise DataError(f"{record.origin}: no field {missing[0]!r}", wanted="a row of the resampled LAMA-ckl")
        if not within or row["fits64"]:
            evidence, span = row["evidence_window"], row["object_span_in_window"]
            probes = [row[name] for name in PROBES]
            facts.append(Fact(evidence, row["subject"], row["relation"], row["object"], *probes, record.origin))
            windows.append((span[0], span[1]) if span else NOWHERE)
    kept = facts if most is None else without_repeats(facts, most)
    places = {id(fact): window for fact, window in zip(facts, windows)}
    return _encode(kept, [places[id(fact)] for fact in kept], tokens)


def without(facts: Facts, texts: set[str]) -> Facts:
    """Return the facts that are told in none of these texts."""
    kept = [i for i, passage in enumerate(facts.passages) if passage.text not in texts]
    return Facts(*(tuple(values[i] for i in kept) for values in vars(facts).values()))


def invented_facts(count: int, seed: int, tokens: OffsetTokens) -> Facts:
    """Return facts of the project's own generator."""
    facts = generate(count, seed)
    spans = [fact.object_span for fact in facts]
    return _encode(facts, [span for span in spans if span is not None], tokens)


def digest(folder: Path) -> str:
    """Return the SHA-256 of all splits."""
    files = sorted(folder.glob("*.jsonl"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _encode(facts: Sequence[Fact], targets: Sequence[Span], tokens: OffsetTokens) -> Facts:
    return Facts(
        tuple(fact.object for fact in facts),
        tuple(from_texts([fact.evidence for fact in facts], [fact.origin for fact in facts], tokens)),
        tuple(targets),
        tuple(encode_probes([fact.descriptive for fact in facts], tokens)),
        tuple(encode_probes([fact.schematic for fact in facts], tokens)),
        tuple(_foils(facts, tokens)),
    )


def _foils(facts: Sequence[Fact], tokens: OffsetTokens) -> list[Encoded | None]:
    probes = foils(facts)
    encoded = iter(encode_probes([probe for probe in probes if probe is not None], tokens))
    return [None if probe is None else next(encoded) for probe in probes]
