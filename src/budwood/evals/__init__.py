"""Evaluation on labelled rows: likelihood, exact match, ROUGE-L and generation, always with the base beside it; and
whether facts were learned and kept."""

from budwood.evals.curves import CurvePoint, TotalKnowledge, learn_at_keep, nll_at_keep, total_knowledge
from budwood.evals.evaluate import base_of, evaluate_rows, with_base
from budwood.evals.generation import Generation, Sampling, generate
from budwood.evals.likelihood import Likelihood, likelihoods
from budwood.evals.metrics import exact_match, rouge_l, stripped, verbatim
from budwood.evals.paired import Difference, paired_difference
from budwood.evals.recall import ProbeScore, Recall, known_facts, nothing_new, score_probes
from budwood.evals.results import Comparison, EvalResult, Means, RowRecord, compare_results, write_records

__all__ = [
    "Comparison",
    "CurvePoint",
    "Difference",
    "EvalResult",
    "Generation",
    "Likelihood",
    "Means",
    "ProbeScore",
    "Recall",
    "RowRecord",
    "Sampling",
    "TotalKnowledge",
    "base_of",
    "compare_results",
    "evaluate_rows",
    "exact_match",
    "generate",
    "known_facts",
    "learn_at_keep",
    "likelihoods",
    "nll_at_keep",
    "nothing_new",
    "paired_difference",
    "rouge_l",
    "score_probes",
    "stripped",
    "total_knowledge",
    "verbatim",
    "with_base",
    "write_records",
]
