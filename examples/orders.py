"""A small task that everyone recognises: an order in free text becomes JSON.

    python examples/orders.py --rows 400 --seed 0 --out orders.jsonl

writes rows such as

    prompt      Hi, could I get two large lattes and a blueberry muffin for Anna, please?
    completion  {"name":"Anna","time":null,"items":[["latte","large",2],["blueberry muffin",null,1]]}

An item is [what, size, how many], in the order of the text. The JSON is canonical (fixed keys, compact, `null` for
what the text does not say), so an answer is right if it is equal, character by character. Every value follows from the
text by rule: number words and "a couple of" become digits, plurals become singulars, "half past eight" becomes "8:30".

No two rows of one call hold the same order, so the test rows of `split` are orders that training never saw.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path

DRINKS = {
    "latte": "lattes",
    "mocha": "mochas",
    "flat white": "flat whites",
    "lemonade": "lemonades",
    "green tea": "green teas",
    "iced tea": "iced teas",
    "black coffee": "black coffees",
    "hot chocolate": "hot chocolates",
}
FOODS = {
    "bagel": "bagels",
    "scone": "scones",
    "brownie": "brownies",
    "croissant": "croissants",
    "apple pie": "apple pies",
    "cinnamon roll": "cinnamon rolls",
    "cheese sandwich": "cheese sandwiches",
    "blueberry muffin": "blueberry muffins",
}
PLURALS = DRINKS | FOODS
SIZES = (None, "small", "medium", "large")
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NAMES = (
    *("Alex", "Anna", "Ben", "Carla", "Chris", "Daniel", "Emma", "Frank", "Grace", "Henry", "Ines", "Jack", "Kate"),
    *("Leo", "Maria", "Nina", "Omar", "Peter", "Quinn", "Rosa", "Sam", "Tara", "Uma", "Victor", "Zoe"),
)

GREETINGS = ("", "", "", "Hi, ", "Hello, ", "Hey, ", "Hi! ", "Hello! ", "Good morning! ", "Good evening! ")
ASKS = (
    *(("could I get", "?"), ("can I have", ", please?"), ("could we have", ", please?"), ("may I order", "?")),
    *(("I'd like", "."), ("I would like", "."), ("we'd like", "."), ("I'll take", "."), ("we want", ", please.")),
)
NAMELESS = ("{ask} {what}{when}{end}", "{ask} {what}{when}{end}", "{what}{when}, please.")
NAMED = (
    "{ask} {what} for {name}{when}{end}",
    "{ask} {what}{when} for {name}{end}",
    "this is {name}. {ask} {what}{when}{end}",
    "{name} here. {ask} {what}{when}{end}",
    "{name} would like {what}{when}.",
    "for {name}: {what}{when}, please.",
)
THANKS = ("", "", " Thanks!", " Thank you!")

Item = tuple[str, str | None, int]


def split(train: int, test: int, seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return `train` rows and `test` rows; no order, hence no prompt, is in both."""
    rows = make(train + test, seed)
    return rows[:train], rows[train:]


def make(n: int, seed: int) -> list[dict[str, str]]:
    """Return `n` rows `{"prompt", "completion"}` of `n` different orders; the same seed gives the same rows."""
    rng = random.Random(seed)
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < n:  # there are millions of orders
        row = _row(rng)
        rows.setdefault(row["completion"], row)
    return list(rows.values())


def _row(rng: random.Random) -> dict[str, str]:
    name = rng.choice(NAMES) if rng.random() < 0.6 else None
    time, spoken_time = _time(rng) if rng.random() < 0.4 else (None, None)
    items = _items(rng)
    completion = json.dumps({"name": name, "time": time, "items": items}, separators=(",", ":"))
    return {"prompt": _prompt(rng, name, spoken_time, items), "completion": completion}


def _items(rng: random.Random) -> list[Item]:
    """Draw one or two different things; only drinks have sizes."""
    chosen = rng.sample(list(PLURALS), rng.choice((1, 2, 2)))
    counts = (1, 1, 1, 2, 2, 3, 4, 5, 6)
    return [(what, rng.choice(SIZES) if what in DRINKS else None, rng.choice(counts)) for what in chosen]


def _time(rng: random.Random) -> tuple[str, str]:
    """Draw a time: as the JSON has it, and as the text says it."""
    hour = rng.randint(1, 12)
    clock = f"{hour}:{rng.randrange(5, 60, 5):02d}"
    ways = (
        (clock, clock),
        (f"{hour}:30", f"half past {NUMBERS[hour - 1]}"),
        (f"{hour}:00", f"{hour} o'clock"),
        ("12:00", "noon"),
    )
    return rng.choice(ways)


def _prompt(rng: random.Random, name: str | None, time: str | None, items: list[Item]) -> str:
    """Say the order: perhaps a greeting, the request with name and time somewhere in it, perhaps thanks."""
    what = rng.choice((" and ", " plus ", ", and also ")).join(_item(rng, item) for item in items)
    when = f" {rng.choice(('at', 'by'))} {time}" if time else ""
    ask, end = rng.choice(ASKS)
    request = rng.choice(NAMED if name else NAMELESS).format(ask=ask, what=what, name=name, when=when, end=end)
    text = rng.choice(GREETINGS) + request + rng.choice(THANKS)
    return re.sub(r"(^|[.!?] )([a-z])", lambda start: start[1] + start[2].upper(), text)


def _item(rng: random.Random, item: Item) -> str:
    what, size, count = item
    one, many = (f"{size} {noun}" if size else noun for noun in (what, PLURALS[what]))
    if count == 1:
        return rng.choice((f"{'an' if one[0] in 'aeiou' else 'a'} {one}", f"one {one}", f"1 {one}"))
    ways = [f"{NUMBERS[count - 1]} {many}", f"{count} {many}", f"{count}x {one}"]
    return rng.choice([*ways, f"a couple of {many}"] if count == 2 else ways)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write made-up orders as JSONL rows of prompt and completion.")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("orders.jsonl"))
    arguments = parser.parse_args()
    rows = make(arguments.rows, arguments.seed)
    arguments.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} rows in {arguments.out}")


if __name__ == "__main__":
    main()
