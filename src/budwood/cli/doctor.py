"""`budwood doctor`: what this machine and this installation offer."""

from __future__ import annotations

from budwood.cli._render import overview
from budwood.cli._shell import Answer


def doctor() -> Answer:
    """Show versions, device, precision, cores, cache and packages.

    \b
    Example:
      budwood doctor --json
    """
    from budwood import _inspect

    found = _inspect.doctor()
    return Answer(found, overview(found))
