"""Facts that should still be known after learning: several hundred, shipped with the package, in our own words.

A file has one object a line, `{"topic", "prompts", "object"}`: each prompt is a statement that the object completes.
What a base does not know it cannot forget, so a run keeps only the facts that its base knows
(`evals.recall.known_facts`).
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from budwood.data.fields import Fields
from budwood.data.files import read_records
from budwood.data.probes import Probe
from budwood.data.problems import Origin


@dataclass(frozen=True, slots=True)
class KeepFact:
    """One general fact.

    Attributes:
        topic: what it is about, such as "capitals".
        prompts: statements that end before the object, the first the plainest.
        object: what completes each of them.
        origin: file and line.
    """

    topic: str
    prompts: tuple[str, ...]
    object: str
    origin: Origin

    @property
    def probes(self) -> tuple[Probe, ...]:
        """One probe a prompt, a sentence that the object and a full stop end."""
        return tuple(
            Probe(f"{prompt} {self.object}.", (len(prompt) + 1, len(prompt) + 1 + len(self.object)), self.origin)
            for prompt in self.prompts
        )


def load_keep_set(path: str | Path | None = None) -> list[KeepFact]:
    """Return the keep-set of a file, or the one that ships with the package.

    Raises:
        DataError: the file cannot be read, or a line of it is no such fact.
    """
    if path is not None:
        return list(_read(Path(path)))
    resource = importlib.resources.files("budwood") / "resources" / "keep_set.jsonl"
    with importlib.resources.as_file(resource) as shipped:
        return list(_read(shipped))


def _read(path: Path) -> Iterator[KeepFact]:
    for record in read_records(path):
        fields = Fields(record)
        for name in ("topic", "prompts", "object"):
            if name not in record.values:
                fields.refuse(name, "the field is missing", '{"topic": "…", "prompts": ["…"], "object": "…"}')
        prompts = fields.as_list(record.values["prompts"], "prompts", "statements")
        texts = tuple(fields.as_answer(prompt, f"prompts[{i}]").strip() for i, prompt in enumerate(prompts))
        yield KeepFact(fields.text("topic"), texts, fields.answer("object").strip(), record.origin)
