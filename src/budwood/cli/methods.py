"""`budwood methods`: which methods and tuners there are."""

from __future__ import annotations

from budwood.cli._render import Table
from budwood.cli._shell import Answer

COLUMNS = ("method", "evidence", "tuner", "learns", "keeps", "paper")  # `--json` has more


def methods() -> Answer:
    """List methods and tuners: what each takes, learns and promises.

    \b
    Example:
      budwood methods
    """
    from budwood import _inspect

    rows = _inspect.methods_table()
    table = Table(COLUMNS, [[row[name] for name in COLUMNS] for row in rows])
    return Answer({"methods": rows}, [table], brief="\n".join(row["method"] for row in rows))
