"""Studies beside the arms: what one step does, whether the closed form is exact, and how token gradients interfere.

All start from a fresh adapter and the validation facts of the scorers (`JUDGING`), of which the dearer ones take the
first few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from budwood.errors import UsageError, nearest
from budwood.methods.taalm import heuristics
from budwood.methods.taalm.importance import exact_weight_gradient, inner_gradient, outer_gradient
from budwood.methods.taalm.lessons import TOGETHER, Lesson, collated, targets
from budwood.methods.taalm.meta_gradient import meta_gradient, one_step_drop, rate_of_norm
from budwood.methods.taalm.theta import Theta, choose_theta

from .facts import Facts
from .learning import adapted
from .scorers import THETA_SEED, Workshop, lessons

JUDGING = "ta_val_cpu"
NORMS = (0.1, 0.3)  # of the one step
FEW = 8  # facts of the dearer studies
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def one_step(theta: Theta, judged: Sequence[Lesson], objects: Sequence[Tensor]) -> dict[str, Any]:
    """Return the drop of the outer loss of each fact, in nats, after one SGD step of the same length.

    Weights: uniform, max(J, 0), its square, and the object's tokens.
    """
    weights = {
        "uniform": [targets([lesson])[0].float() for lesson in judged],
        "J": [_helpful(lesson) for lesson in judged],
        "J²": [_helpful(lesson).square() for lesson in judged],
        "oracle": [one[None] for one in objects],
    }
    drops = {
        f"{name} at {norm:g}": [
            round(one_step_drop(theta, [lesson], one, norm), 4) for lesson, one in zip(judged, weights[name])
        ]
        for name in weights
        for norm in NORMS
    }
    return {"drops": drops}


def _helpful(lesson: Lesson) -> Float[Tensor, "1 T"]:
    """Return max(J, 0), or uniform weights where no token helps."""
    mask, importance = targets([lesson])
    helpful = torch.where(mask, importance, 0).clamp_min(0)
    return helpful if bool(helpful.any()) else mask.float()


def closed_form(theta: Theta, judged: Sequence[Lesson], objects: Sequence[Tensor]) -> dict[str, Any]:
    """Return the cosine of the closed-form meta-gradient to the one by automatic differentiation, of each fact."""
    rate = rate_of_norm(theta, judged[:FEW], NORMS[-1])
    cosines = []
    for lesson in judged[:FEW]:
        weights = targets([lesson])[0].float()
        closed = meta_gradient(theta, [lesson], weights, rate)
        evidence, probes = collated(theta, [lesson.passage.encoded]), collated(theta, [lesson.probe])
        placed = weights.to(evidence["labels"].device)
        exact = exact_weight_gradient(theta, theta.start(1), evidence, placed, probes, rate).float().cpu()
        cosines.append(round(float(torch.cosine_similarity(closed * weights, exact * weights)[0]), 5))
    return {"cosines": cosines}


def interference(theta: Theta, judged: Sequence[Lesson], objects: Sequence[Tensor]) -> dict[str, Any]:
    """Return mean cosines of token gradients in each text: of any two, and of an object's and another token's.

    And the cosines to the outer gradient g_T of the gradient under uniform weights, and of that on the object alone.
    """
    found: dict[str, list[float]] = {
        "any two": [],
        "object and other": [],
        "uniform and g_T": [],
        "object and g_T": [],
    }
    for lesson, hit in zip(judged[:FEW], objects):
        scored = list(lesson.passage.scored)
        gradients = _token_gradients(theta, lesson, scored)
        aim = _flat(outer_gradient(theta, theta.start(1), collated(theta, [lesson.probe]))[1])[0]
        unit = torch.nn.functional.normalize(gradients, dim=1)
        inside = hit[scored] > 0
        n, total = len(scored), unit.sum(dim=0)
        found["any two"].append(float((total @ total - n) / (n * (n - 1))))
        found["object and other"].append(float(unit[inside].mean(dim=0) @ unit[~inside].mean(dim=0)))
        for name, one in (("uniform", gradients.mean(dim=0)), ("object", gradients[inside].mean(dim=0))):
            found[f"{name} and g_T"].append(float(torch.cosine_similarity(one, aim, dim=0)))
    return {"cosines": {name: [round(value, 4) for value in values] for name, values in found.items()}}


def _token_gradients(theta: Theta, lesson: Lesson, scored: Sequence[int]) -> Float[Tensor, "n parameters"]:
    """Return ∇ℓ_t of each scored token, by one-hot weights on copies of the text."""
    rows = []
    for start in range(0, len(scored), TOGETHER):
        part = scored[start : start + TOGETHER]
        evidence = collated(theta, [lesson.passage.encoded] * len(part))
        weights = torch.zeros(evidence["labels"].shape, device=evidence["labels"].device)
        weights[range(len(part)), list(part)] = 1.0
        rows.append(_flat(inner_gradient(theta, theta.start(len(part)), evidence, weights)))
    return torch.cat(rows)


def _flat(point: Sequence[Tensor]) -> Float[Tensor, "rows parameters"]:
    return torch.cat([value.flatten(1).float().cpu() for value in point], dim=1)


STUDIES: Mapping[str, Callable[[Theta, Sequence[Lesson], Sequence[Tensor]], dict[str, Any]]] = {
    "one_step": one_step,
    "closed_form": closed_form,
    "interference": interference,
}


def choose_studies(names: Iterable[str]) -> list[str]:
    """Return the studies called so; "all" stands for every one.

    Raises:
        UsageError: an unknown name.
    """
    chosen = list(names)
    for name in chosen:
        if name not in STUDIES and name != "all":
            raise UsageError(f"there is no study {name!r}", action=nearest(name, [*STUDIES, "all"]))
    return list(STUDIES) if "all" in chosen else chosen


def compute_study(shop: Workshop, name: str) -> dict[str, Any]:
    """Return the figures of a study, one a fact."""
    facts = shop.facts(JUDGING, within=True)  # without the object in the text there is nothing to compare with
    rows = [*(passage.encoded for passage in facts.passages), *facts.schematic]
    with adapted(shop.base, rows, shop.work / "prefix", rank=shop.schedule.rank, seed=THETA_SEED) as model:
        return STUDIES[name](choose_theta(model), lessons(shop, model, facts), _objects(facts))


def _objects(facts: Facts) -> list[Tensor]:
    return [heuristics.oracle(passage, [span]) for passage, span in zip(facts.passages, facts.targets)]


def study_rows(lines: Iterable[Mapping[str, Any]]) -> list[Table]:
    """Return headings and rows of the tables of the studies among finished cells."""
    tables: list[Table] = []
    for line in lines:
        if line.get("study") == "one_step":
            tables.append(_drop_rows(line["drops"]))
        elif "study" in line:
            cosines = line["cosines"]
            named = cosines if isinstance(cosines, dict) else {"closed form and exact meta-gradient": cosines}
            rows = [[name, str(len(one)), f"{np.mean(one):.4f}", f"{min(one):.4f}"] for name, one in named.items()]
            tables.append((["cosine of", "facts", "mean", "least"], rows))
    return tables


def _drop_rows(drops: Mapping[str, Sequence[float]]) -> Table:
    rows = []
    for name, values in drops.items():
        uniform = np.asarray(drops[f"uniform at {name.rpartition(' at ')[2]}"])
        better = float((np.asarray(values) > uniform).mean())
        said = "" if name.startswith("uniform") else f"{100 * better:.0f} %"
        rows.append([name, str(len(values)), f"{np.mean(values):.3f}", said])
    return ["one step with weights, of length", "facts", "drop, nats", "facts with more than uniform"], rows
