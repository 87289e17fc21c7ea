"""What a method and a tuner declare: the two axes of the house, and the promises the contract tests hold them to.

A *tuner* says where new parameters live. A *method* says which evidence it takes, which tuner it uses unless told
otherwise, and what to cite. This file and the declarations built from it import neither torch nor PEFT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel

    from budwood.tuning.lesson import Format, Learner
    from budwood.tuning.prepared import Preparer


class Promise(StrEnum):
    """What a tuner may promise. Each one is kept or refused with a reason; nothing is left open."""

    IDENTITY = "identity"  # attaching changes no output
    MERGE = "merge"  # merged equals unmerged, and unmerging restores the base byte for byte
    SEVERAL = "several"  # several adapters on one base, switched or added up
    LORA = "lora"  # converts exactly into a portable LoRA
    GENERATE = "generate"  # generates with a KV cache (`evals.generate`) what it computes without one


class TunerSettings(BaseModel):
    """Base class of a tuner's settings: frozen, unknown keys refused, each field described."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LearnerSettings(BaseModel):
    """Base class of the settings of a method's learner: frozen, unknown keys refused, each field described."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def starts_from(self) -> Path | None:
        """The run whose adapter training starts from; None for a fresh one."""
        return None


@dataclass(frozen=True)
class Tuner:
    """Where new parameters live.

    Args:
        name: the word that users write.
        learns: what is learned and how many numbers that is, in one line.
        paper: a link.
        settings: the class of its settings; its defaults are the tuner's defaults.
        learning_rate: what AdamW starts from unless the user says otherwise.
        make_config: from settings and a base model to a PEFT configuration.
        keeps: the promises it keeps.
        refuses: the promises it does not keep, each with the reason.
        load_classes: for tuners of ours: returns (config class, model class) to register with PEFT.
    """

    name: str
    learns: str
    paper: str
    settings: type[TunerSettings]
    learning_rate: float
    make_config: Callable[[Any, PreTrainedModel], PeftConfig]
    keeps: frozenset[Promise]
    refuses: Mapping[Promise, str] = field(default_factory=dict)
    load_classes: Callable[[], tuple[type, type]] | None = None

    def __post_init__(self) -> None:
        open_ones = set(Promise) - self.keeps - set(self.refuses)
        assert not open_ones and not self.keeps & set(self.refuses), (self.name, open_ones)

    def peft_classes(self) -> tuple[type, type]:
        """Return PEFT's (config class, model class) of a tuner of ours."""
        assert self.load_classes is not None
        return self.load_classes()


@dataclass(frozen=True)
class Method:
    """How evidence becomes an adapter.

    Args:
        name: the word that users write.
        title: one line for tables.
        evidence: the kind of evidence that it takes (`evidence.Examples.kind` and so on).
        tuner: the tuner that it uses unless told otherwise.
        paper: a link.
        bibtex: what to cite.
        default: whether it is the one that its kind of evidence gets unless told otherwise.
        accepts: what its learner takes besides evidence, by the names of the flags: `prior`, `weights`, `rehearse`,
            `update`, `base_run`, `probes`. They become settings of its learner.
        settings: the class of its learner's settings, the block `learner` of a recipe; None where it has none.
        training: training settings that it starts from, where the user says nothing; a learning rate among them is
            for its own tuner.
        load_learner: for a method that does not train one adapter on labelled rows: returns how it learns.
        mark: for a method that publishes no PEFT adapter: the file that tells its folder.
        load_format: for such a method: returns how its folder is written and read.
        load_preparer: for a method that needs a prior: returns how `prepare` makes one.
    """

    name: str
    title: str
    evidence: str
    tuner: str
    paper: str
    bibtex: str
    default: bool = False
    accepts: frozenset[str] = frozenset()
    settings: type[LearnerSettings] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    load_learner: Callable[[], Learner] | None = None
    mark: str = ""
    load_format: Callable[[], Format] | None = None
    load_preparer: Callable[[], Preparer] | None = None
