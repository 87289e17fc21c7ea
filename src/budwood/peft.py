"""Registers budwood's tuners with PEFT, so that `get_peft_model` and `PeftModel.from_pretrained` know them.

The one file that reaches into PEFT's registry. Safe to call again; steps aside where PEFT has the name already.
"""

from __future__ import annotations

from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.utils import PeftType, register_peft_method

from budwood.tuning.registry import own_tuners


def register() -> None:
    """Make every tuner of ours known to PEFT."""
    for tuner in own_tuners():
        if tuner.name.upper() in PeftType.__members__:
            continue  # registered before, or a PEFT that ships the method itself
        _add_peft_type(tuner.name.upper())
        config_class, model_class = tuner.peft_classes()
        register_peft_method(name=tuner.name, config_cls=config_class, model_cls=model_class)


def _add_peft_type(name: str) -> None:
    """Add a member to PEFT's string enum, which its public function demands but offers no way to do."""
    member = str.__new__(PeftType, name)
    member._name_, member._value_, member.__objclass__ = name, name, PeftType
    member._sort_order_ = len(PeftType.__members__)
    type.__setattr__(PeftType, name, member)
    PeftType._member_names_.append(name)
    PeftType._member_map_[name] = member
    PeftType._value2member_map_[name] = member


def is_registered(name: str) -> bool:
    """Whether PEFT knows the tuner called `name`."""
    return name.upper() in PeftType.__members__ and PeftType(name.upper()) in PEFT_TYPE_TO_CONFIG_MAPPING
