"""Makes the two scorers that ship: facts from our own generator -> `prepare` -> `src/budwood/resources/scorers/`.

    python scripts/train_scorers.py --work DIR

    smollm2/   the head on SmolLM2's own states
    minilm/    the encoder, for any other base

Both are trained on invented facts only. They are judged on relations that they were not trained on. On a CPU the same
versions give the same scorers.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from budwood._prepare import prepare
from budwood.data.facts import Fact
from budwood.data.synthetic import RELATIONS, Relation, generate
from budwood.data.synthetic.relations import KNOWN
from budwood.methods.taalm.prior import FACTS, WEIGHTS

ROOT = Path(__file__).resolve().parent.parent
SCORERS = ROOT / "src" / "budwood" / "resources" / "scorers"
BASE = "smollm2"
SEED = 0
# Facts with objects of the real world and with invented ones, before those longer than `LONGEST` tokens are left out.
# The first decide how a scorer does on real text, the second how it does on names that nobody has heard of.
TRAIN, JUDGE = (330, 110), (32, 12)
LONGEST = 72
EVERY = 8  # relation in so many is kept for judging

BODIES: dict[str, dict[str, Any]] = {
    "smollm2": {"body.kind": "head"},
    "minilm": {"body.kind": "encoder", "stage.steps": 120, "stage.batch_size": 16, "stage.validate_every": 20},
}


def divided() -> tuple[list[Relation], list[Relation]]:
    """Return the relations to train on, and those to judge by."""
    judging = list(RELATIONS[::EVERY])
    return [relation for relation in RELATIONS if relation not in judging], judging


def draw(relations: Sequence[Relation], counts: tuple[int, int], seed: int) -> list[Fact]:
    """Return as many facts of relations with known objects, and of the others, as `counts` says."""
    known = [relation for relation in relations if relation in KNOWN]
    others = [relation for relation in relations if relation not in KNOWN]
    return [fact for some, count in zip((known, others), counts) for fact in generate(count, seed, some)]


def write(path: Path, facts: Sequence[Fact]) -> Path:
    """Write facts as rows."""
    path.write_text("".join(json.dumps(fact.to_dict(), ensure_ascii=False) + "\n" for fact in facts), encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made on the way")
    parser.add_argument("--only", choices=sorted(BODIES), help="make one of them")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    training, judging = divided()
    corpus = write(arguments.work / "train.jsonl", draw(training, TRAIN, SEED))
    validation = write(arguments.work / "judge.jsonl", draw(judging, JUDGE, SEED + 1))
    for name in [arguments.only] if arguments.only else BODIES:
        place = arguments.work / name
        made = prepare(
            BASE,
            "taalm",
            corpus=corpus,
            out=place,
            seed=SEED,
            overrides=BODIES[name] | {"validation": validation, "longest": LONGEST},
            resume=(place / "status.json").exists(),
        )
        print(name, json.dumps(made.metrics))
        (SCORERS / name).mkdir(parents=True, exist_ok=True)
        for file in (FACTS, WEIGHTS):
            shutil.copyfile(place / file, SCORERS / name / file)


if __name__ == "__main__":
    main()
