"""Text into domains, one for each prompt of a bank: by file, or by clusters of windows with similar words.

A choice among prompts gains only where they are specialised, so each prompt gets text of its own kind. What is held
out of a domain is its end: neighbouring windows of one text are too much alike to be on two sides of a random split.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from budwood.data.documents import Document, Window, make_windows
from budwood.data.offsets import OffsetTokens
from budwood.data.render import Encoded
from budwood.data.report import DataReport, Progress
from budwood.data.settings import DataSettings
from budwood.errors import ConfigError, DataError
from budwood.methods.idp.clusters import cluster_texts
from budwood.methods.idp.settings import BankSettings

MOST_FILES = 8  # files that `auto` gives a prompt each
CLUSTERS = 3
SHORTEST = 8  # tokens of a window; half of it must be enough to choose a prompt by
FEWEST = 4  # windows that a domain is trained on


@dataclass(frozen=True)
class Domain:
    """The text of one prompt.

    Attributes:
        name: of the prompt.
        train, held_out: windows as tokens; the text that is held out comes last.
        words: what sets a cluster apart; empty where the domain is a file.
    """

    name: str
    train: list[Encoded]
    held_out: list[Encoded]
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Division:
    """All domains, and the counts."""

    domains: tuple[Domain, ...]
    report: DataReport = field(default_factory=DataReport)

    def mixture(self) -> tuple[list[Encoded], list[Encoded]]:
        """Return the windows of all domains in turn, trained on and held out: any beginning holds all kinds."""
        return _in_turn([one.train for one in self.domains]), _in_turn([one.held_out for one in self.domains])


def divide(
    documents: Sequence[Document],
    tokens: OffsetTokens,
    settings: BankSettings,
    data: DataSettings,
    *,
    seed: int,
    progress: Progress | None = None,
) -> Division:
    """Divide documents into domains of windows.

    Args:
        tokens: the base's tokenizer.
        seed: of the clustering.
        progress: as in `make_windows`.

    Raises:
        DataError: too little text.
        ConfigError: files are asked for where there is one, or `lengths` does not fit.
    """
    report = DataReport()
    windows = _windows(documents, tokens, min(settings.window, data.max_length), report, progress)
    if len(windows) < FEWEST + 1:
        raise DataError(
            f"the text makes {len(windows)} windows of up to {min(settings.window, data.max_length)} tokens",
            wanted=f"{FEWEST + 1} at least, and some hundreds for a good prompt",
            action="give more text, or shorter windows with --set learner.window=N",
        )
    groups = _groups(windows, settings, data, seed)
    _require_enough(groups, data)
    domains = tuple(_domain(name, part, words, data, len(groups)) for name, part, words in groups)
    report.train_rows = sum(len(one.train) for one in domains)
    report.evaluation_rows = sum(len(one.held_out) for one in domains)
    if settings.lengths and len(settings.lengths) != len(domains):
        raise ConfigError(
            f"learner.lengths has {len(settings.lengths)} numbers for {len(domains)} prompts", wanted="one for each"
        )
    return Division(domains, report)


def _windows(
    documents: Sequence[Document], tokens: OffsetTokens, longest: int, report: DataReport, progress: Progress | None
) -> list[Window]:
    kept = []
    for window in make_windows(documents, tokens, max_tokens=longest, with_heading=False, progress=progress):
        report.rows += 1
        if len(window.encoded.input_ids) < SHORTEST:
            report.drop(f"shorter than {SHORTEST} tokens", window.document.origin)
            continue
        report.keep([window.encoded])
        kept.append(window)
    return kept


_Group = tuple[str, list[Window], tuple[str, ...]]  # name, windows, telling words


def _groups(windows: list[Window], settings: BankSettings, data: DataSettings, seed: int) -> list[_Group]:
    files = list(dict.fromkeys(window.document.origin.file for window in windows))
    by_file = settings.divide == "files" or (
        settings.divide == "auto" and settings.prompts is None and 2 <= len(files) <= MOST_FILES
    )
    if by_file:
        if settings.prompts not in (None, len(files)):
            raise ConfigError(
                f"learner.prompts is {settings.prompts}, and there are {len(files)} files to get one each",
                action="leave it out, or set learner.divide=clusters",
            )
        names = _unique([_name(file) for file in files])
        members: dict[str, list[Window]] = {file: [] for file in files}
        for window in windows:
            members[window.document.origin.file].append(window)
        return [(name, part, ()) for name, part in zip(names, members.values(), strict=True)]
    return _clustered(windows, settings, data, seed)


def _clustered(windows: list[Window], settings: BankSettings, data: DataSettings, seed: int) -> list[_Group]:
    """Return clusters; where their number is left open, as many of up to three as have text enough."""
    wanted = settings.prompts or CLUSTERS
    most = min(wanted, len(windows))
    for k in range(most, 0, -1):
        found = cluster_texts([window.text for window in windows], k, seed=seed)
        parts: list[list[Window]] = [[] for _ in range(k)]
        for window, label in zip(windows, found.labels.tolist(), strict=True):
            parts[label].append(window)
        groups = [(f"cluster-{i + 1}", part, found.words[i]) for i, part in enumerate(parts)]
        if settings.prompts is not None or all(_enough(part, data) for part in parts):
            break
    return groups


def _enough(windows: Sequence[Window], data: DataSettings) -> bool:
    return len(windows) >= FEWEST + _holds_out(data)


def _holds_out(data: DataSettings) -> bool:
    return data.evaluation_fraction > 0 and data.evaluation_rows_max > 0


def _require_enough(groups: Sequence[_Group], data: DataSettings) -> None:
    for name, windows, _ in groups:
        if not _enough(windows, data):
            raise DataError(
                f"the text for the prompt {name!r} makes {len(windows)} windows",
                wanted=f"{FEWEST} to train on, and one to hold out",
                action="give more text of that kind, or fewer prompts: --set learner.divide=clusters"
                " --set learner.prompts=N",
            )


def _domain(name: str, windows: Sequence[Window], words: tuple[str, ...], data: DataSettings, domains: int) -> Domain:
    """Hold out the end, at most an equal share of `evaluation_rows_max`."""
    rows, out = [window.encoded for window in windows], 0
    if _holds_out(data):
        wanted = max(1, round(data.evaluation_fraction * len(rows)))
        out = min(wanted, max(1, data.evaluation_rows_max // domains), len(rows) - FEWEST)
    return Domain(name, rows[: len(rows) - out], rows[len(rows) - out :], words)


def _name(file: str) -> str:
    """Return a file's name without its suffix, as a name for a folder."""
    return re.sub(r"[^\w.-]+", "-", Path(file).stem).strip("-.") or "text"


def _unique(names: Sequence[str]) -> list[str]:
    """Number the names that occur again."""
    made: list[str] = []
    for name in names:
        number, new = 2, name
        while new in made:
            new, number = f"{name}-{number}", number + 1
        made.append(new)
    return made


def _in_turn(parts: Sequence[list[Encoded]]) -> list[Encoded]:
    longest = max(map(len, parts))
    return [part[i] for i in range(longest) for part in parts if i < len(part)]
