"""The orders of the demo: canonical, distinct, and recoverable from the text by rule."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from budwood.cli.demo import _orders

orders = _orders()
ROWS = orders.make(3000, seed=1)
SINGULAR = {plural: noun for noun, plural in orders.PLURALS.items()} | {noun: noun for noun in orders.PLURALS}
NUMBERS = {word: number for number, word in enumerate(orders.NUMBERS, 1)} | {"a": 1, "an": 1, "a couple of": 2}


def understood(prompt: str) -> dict:
    """Recover an order from its text with rules that know the vocabulary but not the generator."""
    name = re.search(rf"\b({'|'.join(orders.NAMES)})\b", prompt)
    time, text = None, prompt
    if match := re.search(r" (?:at|by) (noon|half past (\w+)|(\d+) o'clock|(\d+:\d\d))", prompt):
        half, hour, clock = match.groups()[1:]
        time = clock or (f"{hour}:00" if hour else f"{NUMBERS[half]}:30" if half else "12:00")
        text = prompt.replace(match[0], "")
    counts, nouns = "|".join(sorted(NUMBERS, key=len, reverse=True)), "|".join(sorted(SINGULAR, key=len, reverse=True))
    item = rf"\b(?:({counts})|(\d+)x?) (?:(small|medium|large) )?({nouns})\b"
    items = [
        [SINGULAR[noun.lower()], size or None, int(digits) if digits else NUMBERS[word.lower()]]
        for word, digits, size, noun in re.findall(item, text, re.IGNORECASE)
    ]
    return {"name": name[1] if name else None, "time": time, "items": items}


def test_every_value_is_recoverable_from_the_text():
    for row in ROWS:
        assert understood(row["prompt"]) == json.loads(row["completion"]), row


def test_the_json_is_canonical():
    for row in ROWS:
        order = json.loads(row["completion"])
        assert json.dumps(order, separators=(",", ":")) == row["completion"]
        assert list(order) == ["name", "time", "items"]
        for what, size, count in order["items"]:
            assert what in orders.PLURALS and type(count) is int and 1 <= count <= 6
            assert size in orders.SIZES and (size is None or what in orders.DRINKS)


def test_no_order_and_no_prompt_twice():
    assert len({row["completion"] for row in ROWS}) == len({row["prompt"] for row in ROWS}) == len(ROWS)


def test_the_seed_decides():
    assert orders.make(50, seed=3) == orders.make(50, seed=3)
    assert orders.make(50, seed=3) != orders.make(50, seed=4)
    assert orders.make(20, seed=3) == orders.make(50, seed=3)[:20]


@pytest.mark.parametrize("seed", range(5))
def test_train_and_test_share_no_order(seed):
    train, test = orders.split(500, 200, seed)
    assert (len(train), len(test)) == (500, 200)
    for field in ("prompt", "completion"):
        assert not {row[field] for row in train} & {row[field] for row in test}


def test_rows_are_short_and_well_formed():
    for row in ROWS:
        prompt = row["prompt"]
        assert len(prompt.split()) <= 30
        assert len(row["completion"]) <= 100
        assert prompt[0].isupper() or prompt[0].isdigit()
        assert "  " not in prompt and " ." not in prompt and " ," not in prompt
        assert prompt[-1] in ".?!"
        assert not re.search(r"[.?!] [a-z]", prompt)
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", prompt, re.IGNORECASE)


def test_surface_forms_vary():
    openings = {" ".join(row["prompt"].split()[:3]) for row in ROWS}
    assert len(openings) > 300
    text = "\n".join(row["prompt"] for row in ROWS)
    for form in ("half past", "o'clock", "noon", "a couple of", "2x ", "sandwiches", " here. ", "Thank you!"):
        assert form in text


def test_it_runs_with_the_standard_library_alone(tmp_path):
    script = Path(orders.__file__).resolve()
    words = ["--rows", "7", "--seed", "2", "--out", "orders.jsonl"]
    subprocess.run([sys.executable, "-I", "-S", str(script), *words], cwd=tmp_path, check=True, capture_output=True)
    lines = (tmp_path / "orders.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == orders.make(7, seed=2)
