"""Every error that budwood raises on purpose, and the exit code of each.

    BudwoodError                     2
    ├── UsageError                   2   a flag, a name or a combination that does not exist
    ├── ConfigError                  2   a recipe or a setting
    ├── DataError                    2   a file of rows; names file, line and field
    │   └── LocatedError             2   the same with its place as values (in `data.problems`)
    ├── ModelError                   2   a base model that cannot be found or read
    │   └── BaseMismatchError        2   an adapter met another base than it was made on
    ├── AdapterError                 2   an adapter folder that cannot be read
    │   └── DamagedError             2   one that was whole once (4 where it is verified)
    ├── NotSupportedError            2   something a method or a base cannot do, with the reason
    ├── StorageError                 2   a disk that is full, read-only or gone (3 while training)
    ├── TrainingError                3   training could not go on; the last good state is kept
    │   ├── NonFiniteError           3   a loss or a gradient was NaN or infinite
    │   └── OutOfMemoryError         3
    ├── VerificationError            4   a saved or exported adapter does not do what the trained one did
    └── InterruptedRunError        130   SIGINT or SIGTERM; state saved, `--resume` continues

Exit code 1 is never raised on purpose: it means a bug of ours.

An error says three things, each optional but the first: what was got, what was wanted, what to do.
Errors of other libraries are translated at the border where they appear (`models.borders`, `storage.guarded`,
`training.borders`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BudwoodError(Exception):
    """What was got, what was wanted, what to do.

    Args:
        got: what was found, with the value in it. One sentence, no full stop.
        wanted: what would have been right.
        action: what the user can do now.
    """

    exit_code = 2

    def __init__(self, got: str, *, wanted: str = "", action: str = "") -> None:
        self.got, self.wanted, self.action = got, wanted, action
        super().__init__(got, wanted, action)

    def __str__(self) -> str:
        lines = [self.got]
        if self.wanted:
            lines.append(f"  wanted: {self.wanted}")
        if self.action:
            lines.append(f"  to do:  {self.action}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, str | int]:
        """The error as `--json` prints it and `status.json` keeps it."""
        return {
            "type": type(self).__name__,
            "got": self.got,
            "wanted": self.wanted,
            "action": self.action,
            "exit_code": self.exit_code,
        }

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.got, self.wanted, self.action)


def _rebuild(kind: type[BudwoodError], got: str, wanted: str, action: str) -> BudwoodError:
    return kind(got, wanted=wanted, action=action)


class UsageError(BudwoodError):
    """A flag, a name or a combination that does not exist."""


class ConfigError(BudwoodError, ValueError):
    """A recipe or a setting that cannot be used. Also a ValueError, which PEFT's users expect of a config."""


class DataError(BudwoodError):
    """A file of rows that cannot be used; the message names file, line and field."""


class ModelError(BudwoodError):
    """A base model that cannot be found, reached or read."""


class BaseMismatchError(ModelError):
    """An adapter met another base than the one it was made on."""


class AdapterError(BudwoodError):
    """An adapter folder that cannot be read or does not fit its base."""


class DamagedError(AdapterError):
    """A finished adapter of which a file is missing or broken. To `verify` it is a failed check, with exit code 4."""


class NotSupportedError(BudwoodError):
    """Something that a method, a base or an exporter cannot do, with the reason."""


class StorageError(BudwoodError):
    """The disk is full, read-only or gone. Training turns its exit code into 3."""


class TrainingError(BudwoodError):
    """Training could not go on; the last good state is kept."""

    exit_code = 3


class NonFiniteError(TrainingError):
    """A loss or a gradient was NaN or infinite."""


class OutOfMemoryError(TrainingError):
    """The device or the machine had no memory left."""


class VerificationError(BudwoodError):
    """A saved or exported adapter does not do what the trained one did."""

    exit_code = 4


class InterruptedRunError(BudwoodError):
    """SIGINT or SIGTERM arrived; the state is saved."""

    exit_code = 130


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the closest known one if there is one, then the full list."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}There are: {', '.join(names) or 'none'}"
