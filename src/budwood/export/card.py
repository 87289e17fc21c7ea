"""The model card of a published adapter: Markdown with YAML front matter, facts only.

Everything a user or a file supplied (names, commands, settings) is escaped: a card is read by browsers and by the hub.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from budwood._texts import flat, shown

# What the hub calls each kind of folder: relation to the base, library that loads it, tags.
HUB: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "adapter": ("adapter", "peft", ("lora",)),
    "prompts": ("adapter", "peft", ("prompt-tuning",)),
    "merged": ("finetune", "transformers", ()),
    "compressed": ("quantized", "transformers", ()),
}
TITLES = {
    "adapter": "{method} adapter for {base}",
    "prompts": "{method} soft prompts for {base}",
    "merged": "{method} adapter merged into {base}",
    "compressed": "{base} compressed with {method}",
}
PYTHON = ("PEFT", "transformers", "budwood")  # consumers whose lines are Python; those of the others are for a shell
MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")


@dataclass(frozen=True)
class CardFacts:
    """What a card states. An empty value is left out; nothing is guessed.

    Args:
        method: what set the parameters, for instance `gift`.
        tuner: where they are, for instance `gift` or `lora`.
        paper: address of the paper.
        base: the base model: a hub id, or what the user called it.
        revision: commit of the base on the hub.
        fingerprint: SHA-256 of the source weights of the base.
        recipe: the settings that matter, name to value.
        metrics: name to value, as measured.
        trainable_parameters: how many numbers were trained.
        adapter_bytes: size of the adapter as it was trained; an export may be larger.
        command: the command line that made it.
        budwood_version: the version of budwood that made it.
        bibtex: the entry to cite.
    """

    method: str
    base: str
    tuner: str = ""
    paper: str = ""
    revision: str = ""
    fingerprint: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    trainable_parameters: int | None = None
    adapter_bytes: int | None = None
    command: str = ""
    budwood_version: str = ""
    bibtex: str = ""


@dataclass(frozen=True)
class CardUse:
    """How the published folder is used.

    Args:
        task_type: PEFT's task type, or empty.
        commands: the name of each consumer and the lines that make it read the folder.
        notes: what a user of the folder must know, one sentence each.
        kind: what the folder holds: an `adapter`, soft `prompts`, the base with an adapter `merged` in, or the base
            `compressed`.
    """

    task_type: str = ""
    commands: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    kind: Literal["adapter", "prompts", "merged", "compressed"] = "adapter"


def model_card(facts: CardFacts, use: CardUse) -> str:
    """Return the text of README.md."""
    title = TITLES[use.kind].format(method=facts.method, base=facts.base)
    sections = [
        _front_matter(facts, use),
        f"# {escape(title)}",
        _table(_fact_rows(facts)),
        *_section("Use", [*(_snippet(name, text) for name, text in use.commands.items()), _bullets(use.notes)]),
        *_section("Measured", [_table(facts.metrics.items())]),
        *_section("Settings", [_table(_settings(facts.recipe))]),
        *_section("Made with", [_fenced(facts.command, "bash")]),
        *_section("Citation", [_fenced(facts.bibtex, "bibtex")]),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _front_matter(facts: CardFacts, use: CardUse) -> str:
    relation, library, tags = HUB[use.kind]
    noun = "model" if use.kind == "compressed" else "adapter"
    # On the hub a tag such as `gptq` promises packed weights.
    named = () if use.kind == "compressed" else (facts.method, facts.tuner)
    on_the_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", facts.base)  # the hub refuses any other name of a base
    data: dict[str, Any] = {
        **({"base_model": facts.base, "base_model_relation": relation} if on_the_hub else {}),
        "library_name": library,
        "tags": list(dict.fromkeys(_one_line(tag) for tag in (*tags, *named, "budwood") if tag)),
    }
    if use.task_type == "CAUSAL_LM":
        data["pipeline_tag"] = "text-generation"
    dumped = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=10_000)
    return f"---\n{dumped}# license: state the licence under which you publish this {noun}\n---"


def _fact_rows(facts: CardFacts) -> list[tuple[str, Any]]:
    rows = [
        ("Base model", facts.base),
        ("Revision of the base", facts.revision),
        ("Fingerprint of the base weights (SHA-256)", facts.fingerprint),
        ("Method", facts.method),
        ("Tuner", facts.tuner),
        ("Paper", facts.paper),
        ("Trained parameters", _count(facts.trainable_parameters)),
        ("Size as trained, bytes", _count(facts.adapter_bytes)),
        ("budwood", facts.budwood_version),
    ]
    return [(name, value) for name, value in rows if value]


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _section(title: str, parts: list[str]) -> list[str]:
    filled = [part for part in parts if part]
    return [f"## {title}", *filled] if filled else []


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    lines = [f"| {escape(name)} | {escape(_text(value))} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines]) if lines else ""


def _settings(recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the settings that are set, blocks taken apart under dotted names."""
    return [(name, text) for name, value in flat(recipe) if (text := shown(value)) != "-"]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {escape(sentence)}" for sentence in sentences)


def _snippet(name: str, text: str) -> str:
    return f"{escape(name)}:\n\n{_fenced(text, 'python' if name in PYTHON else 'bash')}"


def _fenced(text: str, language: str) -> str:
    """Return a code block whose fence is longer than any run of backticks in `text`."""
    if not text:
        return ""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def escape(text: str) -> str:
    """Return `text` as one line of Markdown that shows exactly these characters, in a table cell too."""
    return MARKDOWN.sub(r"\\\1", _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())
