"""The model card: facts, front matter that the hub reads, and no way out of the escaping."""

from __future__ import annotations

from huggingface_hub import ModelCard

from budwood.export.card import CardFacts, CardUse, escape, model_card

FACTS = CardFacts(
    method="gift",
    tuner="gift",
    base="org/base",
    revision="abc",
    fingerprint="f" * 64,
    paper="https://arxiv.org/abs/2312.00700",
    recipe={"training.learning_rate": 3e-3},
    metrics={"exact_match": 0.75},
    trainable_parameters=258048,
    adapter_bytes=1032192,
    command="budwood adapt org/base --examples rows.jsonl",
    budwood_version="0.1.0",
    bibtex="@article{x}",
)


def front_matter(card: str) -> dict:
    """What the hub reads."""
    return ModelCard(card).data.to_dict()


def test_front_matter_names_base_and_library_and_leaves_the_licence_to_the_user():
    data = front_matter(model_card(FACTS, CardUse("CAUSAL_LM")))
    assert data["base_model"] == "org/base" and data["library_name"] == "peft"
    assert data["tags"] == ["lora", "gift", "budwood"] and data["pipeline_tag"] == "text-generation"
    assert "license" not in data


def test_every_fact_is_stated():
    card = model_card(FACTS, CardUse(commands={"PEFT": "import peft"}, notes=("Mind the gap.",)))
    for fact in (
        "abc",
        "f" * 64,
        "258,048",
        "1,032,192",
        "0.003",
        "0.75",
        "@article{x}",
        "import peft",
        "Mind the gap.",
    ):
        assert fact in card


def test_settings_are_a_table_of_those_that_are_set():
    recipe = {"rank": 8, "side": {"q": "input", "o": "output"}, "targets": ["q", "o"], "alpha": None, "groups": {}}
    card = model_card(CardFacts(method="gift", base="org/base", recipe=recipe), CardUse())
    rows = [line for line in card.partition("## Settings")[2].splitlines() if line.startswith("| ")]
    assert rows[1:] == ["| rank | 8 |", "| side.q | input |", "| side.o | output |", "| targets | q, o |"]
    assert "{" not in card


def test_what_is_not_known_is_left_out():
    card = model_card(CardFacts(method="lora", base="org/base"), CardUse())
    assert "##" not in card and "Fingerprint" not in card and "None" not in card


def test_user_strings_cannot_leave_their_place():
    evil = "x\n---\nlicense: mit\n# <script>alert(1)</script> | a\\"
    card = model_card(
        CardFacts(method="lora", base=evil, recipe={evil: evil}, command="echo '````'\n```\n# out"), CardUse()
    )
    assert "base_model" not in front_matter(card) and "license" not in front_matter(card)
    body = card.split("---\n", 2)[2]
    assert "<script>" not in body.replace("\\<script", "")
    assert "\n---\n" not in body and "\n# <" not in body
    row = next(line for line in body.splitlines() if line.startswith("| Base model"))
    assert row.replace("\\\\", "").replace("\\|", "").count("|") == 3
    assert "`````bash\necho" in body  # a fence longer than any run of backticks inside


def test_escape_shows_exactly_the_characters():
    assert escape("a_b*c [d](e) `f` &lt;") == r"a\_b\*c \[d\]\(e\) \`f\` \&lt;"
