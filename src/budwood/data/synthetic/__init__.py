"""Invented facts, from a seed: what a scorer of tokens is trained on."""

from budwood.data.synthetic.generator import generate
from budwood.data.synthetic.relations import RELATIONS, Relation

__all__ = ["RELATIONS", "Relation", "generate"]
