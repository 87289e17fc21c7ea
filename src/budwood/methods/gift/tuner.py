"""GIFT as a PEFT tuner: the layer and the model class. The skeleton is in `tuning/`; here is only what is GIFT's."""

from __future__ import annotations

from typing import ClassVar

from budwood.errors import ConfigError, nearest
from budwood.methods.gift.config import GiftConfig
from budwood.methods.gift.generator import GiftGenerator
from budwood.tuning.edits import Place
from budwood.tuning.groups import Grouping
from budwood.tuning.shared_layer import SharedLayer
from budwood.tuning.shared_tuner import SharedTuner


class GiftLayer(SharedLayer):
    """A linear layer with GIFT generators on its input, its output, or both."""

    attribute_of: ClassVar[dict[Place, str]] = {"input": "gift_in", "output": "gift_out"}
    adapter_layer_names: tuple[str, ...] = ("gift_in", "gift_out")


class GiftModel(SharedTuner):
    """Injects GIFT into a model; `peft.get_peft_model(model, GiftConfig(...))` builds it."""

    prefix: str = "gift_"
    tuner_layer_cls = GiftLayer

    def make_map(self, config: GiftConfig, place: Place, sizes: tuple[int, int], rank: int) -> GiftGenerator:
        return GiftGenerator(sizes[place == "output"], rank, config.init_at(place), config.nonlinearity)

    def needs_weight(self, config: GiftConfig) -> bool:
        return config.nonlinearity != "identity"

    def places(self, config: GiftConfig, kind: str) -> tuple[Place, ...]:
        side = config.side_of(kind)
        return ("input", "output") if side == "both" else ("input",) if side == "input" else ("output",)

    def grouping(self, config: GiftConfig) -> Grouping:
        return Grouping(config.share, config.share_depth)

    def ranks(self, config: GiftConfig) -> tuple[int, dict[str, int]]:
        return config.r, config.group_ranks

    def spec_values(self, config: GiftConfig, rank: int) -> tuple[float, float, bool]:
        return config.scale(rank), config.gift_dropout, config.output_edits_bias

    def check_kinds(self, config: GiftConfig, kinds: set[str]) -> None:
        """Refuse a `side` that names a module which is not adapted."""
        for kind in config.side if isinstance(config.side, dict) else ():
            if kind not in kinds:
                raise ConfigError(
                    f"side names {kind!r}, which is not among the adapted modules", action=nearest(kind, kinds)
                )
