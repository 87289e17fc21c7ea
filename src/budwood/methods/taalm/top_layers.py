"""Which layers are adapted: those at the top, so that what lies below is computed once and read by the scorer too."""

from __future__ import annotations

from budwood.errors import ConfigError
from budwood.tuning.protocol import TunerSettings

FEWEST, SHARE = 4, 5  # a fifth of all layers, and at least 4


def top_count(depth: int, wanted: int | None) -> int:
    """Return K, the number of layers from the top, of `depth`.

    Raises:
        ConfigError: there are not so many.
    """
    if wanted is not None and wanted > depth:
        raise ConfigError(f"the top {wanted} of {depth} layers", wanted=f"{depth} at most")
    return wanted or min(depth, max(FEWEST, depth // SHARE))


def at_the_top(settings: TunerSettings, depth: int, wanted: int | None) -> TunerSettings:
    """Return a tuner's settings for the top layers; unchanged where it has no layers to choose, or has them chosen."""
    if settings.model_dump().get("layers", ()) is not None:  # given, or there is no such setting
        return settings
    return settings.model_copy(update={"layers": list(range(depth - top_count(depth, wanted), depth))})
