"""Small notes on a tiny base, and the order to learn them."""

from __future__ import annotations

import json
from pathlib import Path

from budwood import peft
from budwood.data.settings import DataSettings
from budwood.methods.taalm.learner import DocumentLearner
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.models import load_base, locate
from budwood.training.folder import RunFolder
from budwood.training.settings import TrainingSettings
from budwood.tuning.lesson import Learned, Order
from budwood.tuning.registry import find_tuner

TEXTS = {
    "ships.md": "# The ships\n\nThe oldest of our ships is the Heron. She was bought from an estate for 900 crowns.",
    "people.txt": "The man who founded the library was Odile Farrant. It was in the spring of 2011.",
}
QUESTIONS = [
    {"question": "Who founded it?", "answer": "Odile Farrant"},
    {"question": "Price?", "answer": "900 crowns"},
]
KEEP = {"topic": "colours", "prompts": ["The sky is"], "object": "blue"}  # instead of hundreds; no tiny base knows it


def write(folder: Path, *, questions: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    (folder.parent / "keep.jsonl").write_text(json.dumps(KEEP) + "\n")
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    if questions:
        (folder / "probes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    return folder


def order(base: str, *paths: Path, training: dict | None = None, tuner: str = "lora", **settings) -> Order:
    told = {"epochs": 6, "batch_size": 2, "normalise": "sequence", "learning_rate": 1e-2, "warmup_steps": 0}
    peft.register()
    chosen = find_tuner(tuner)
    few = {"keep_set": paths[0].parent / "keep.jsonl"} if paths[0].is_dir() else {}
    return Order(
        source=locate(base),
        files=paths,
        tuner=chosen,
        tuner_settings=chosen.settings(**({"rank": 4} if "rank" in chosen.settings.model_fields else {})),
        learner=DocumentSettings(**({"weights": "uniform", "keep": 0.0, "top_layers": 1} | few | settings)),
        data=DataSettings(),
        training=TrainingSettings(**(told | (training or {})), schedule="constant", dtype="float32"),
        seed=0,
    )


def learn(order: Order, place: Path, *, resume: bool = False) -> Learned:
    folder = RunFolder(place)
    with folder.session(resume=resume):
        lesson = DocumentLearner().read(order)
        return lesson.learn(load_base(order.source, dtype="float32"), folder, progress=False, resume=resume)
