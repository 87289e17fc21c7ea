"""What follows in a recipe from what it says: the method from the evidence, tuner and training from the method.

Values are nested mappings here, not checked yet: what is wrong with them is said when the recipe is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from budwood._layers import Values, merge
from budwood.errors import ConfigError, NotSupportedError
from budwood.tuning.protocol import Method, Tuner
from budwood.tuning.registry import default_method, find_method, find_tuner, methods

# What a learner may be given besides evidence, by the name of its flag; `Method.accepts` says which method takes it.
LEARNER = {
    "prior": "what `budwood prepare` made for this base",
    "weights": "a rule for the weights of tokens",
    "rehearse": "old rows to mix in",
    "update": "a rule for the update",
    "base_run": "an earlier run to go on from",
    "probes": "questions about what is learned",
}


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in what follows from other values: the method from the evidence, the tuner from the method."""
    values = dict(values)
    evidence = values.get("evidence") or {}
    if "method" not in values and isinstance(evidence, Mapping) and "kind" in evidence:
        values["method"] = default_method(str(evidence["kind"])).name
    if "method" in values:
        method = find_method(str(values["method"]))
        _refuse_unaccepted(method, values)
        given = {name: values.pop(name) for name in LEARNER if name in values}
        if isinstance(values.get("training") or {}, Mapping):
            values["training"] = merge(_training(method, values), values.get("training") or {})
        if method.settings is not None and isinstance(values.get("learner") or {}, Mapping):
            values["learner"] = {"name": method.name, **(values.get("learner") or {}), **given}
        elif method.settings is None and values.get("learner") is not None:
            raise ConfigError(f"the method {method.name} has no settings of its own", action="leave out learner.*")
        tuner = values.get("tuner") or {}
        if isinstance(tuner, Mapping):
            values["tuner"] = {"name": method.tuner, **tuner}
            chosen = find_tuner(str(values["tuner"]["name"]))
            values["training"] = _with_learning_rate(values.get("training") or {}, chosen)
        if isinstance(evidence, Mapping) and evidence.get("kind", method.evidence) != method.evidence:
            raise ConfigError(
                f"the method {method.name} takes {method.evidence}, not {evidence['kind']}",
                action=f"use --{method.evidence}, or another --method",
            )
    return values


def _refuse_unaccepted(method: Method, values: Values) -> None:
    """Refuse what the method's learner does not take, by the name of the flag."""
    for name in LEARNER:
        if name in values and name not in method.accepts:
            flag = f"--{name.replace('_', '-')}"
            takers = [other.name for other in methods().values() if name in other.accepts]
            raise NotSupportedError(
                f"{flag} {values[name]}: the method {method.name} does not take {LEARNER[name]}",
                wanted=f"a method that does: {', '.join(takers) or 'this version has none'}",
                action=f"leave out {flag}" + (", or choose another --method" if takers else ""),
            )


def _training(method: Method, values: Values) -> Values:
    """Return the training settings that a method starts from; its learning rate is meant for its own tuner."""
    tuner = values.get("tuner")
    another = isinstance(tuner, Mapping) and tuner.get("name", method.tuner) != method.tuner
    return {name: value for name, value in method.training.items() if not (another and name == "learning_rate")}


def _with_learning_rate(training: Any, tuner: Tuner) -> Any:
    if isinstance(training, Mapping) and training.get("learning_rate") is None:
        return {**training, "learning_rate": tuner.learning_rate}
    return training
