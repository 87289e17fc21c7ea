"""Evaluation on labelled rows: likelihood, exact match, ROUGE-L and generation, always with the base beside it."""

from budwood.evals.evaluate import base_of, evaluate_rows, with_base
from budwood.evals.generation import Generation, Sampling, generate
from budwood.evals.likelihood import Likelihood, likelihoods
from budwood.evals.metrics import exact_match, rouge_l, stripped, verbatim
from budwood.evals.paired import Difference, paired_difference
from budwood.evals.results import Comparison, EvalResult, Means, RowRecord, compare_results, write_records

__all__ = [
    "Comparison",
    "Difference",
    "EvalResult",
    "Generation",
    "Likelihood",
    "Means",
    "RowRecord",
    "Sampling",
    "base_of",
    "compare_results",
    "evaluate_rows",
    "exact_match",
    "generate",
    "likelihoods",
    "paired_difference",
    "rouge_l",
    "stripped",
    "verbatim",
    "with_base",
    "write_records",
]
