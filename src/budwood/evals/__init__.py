"""Evaluation on labelled rows: likelihood, exact match, ROUGE-L and generation, always with the base beside it;
perplexity, multiple choice, what a choice among prompts gives, lm-eval; and whether facts were learned and kept."""

from budwood.evals.choice import Choices, measure_choices
from budwood.evals.curves import CurvePoint, TotalKnowledge, learn_at_keep, nll_at_keep, total_knowledge
from budwood.evals.evaluate import base_of, evaluate_rows, with_base
from budwood.evals.generation import Generation, Sampling, generate
from budwood.evals.harness import lm_eval_model
from budwood.evals.likelihood import Likelihood, likelihoods, select_prompts
from budwood.evals.metrics import exact_match, rouge_l, stripped, verbatim
from budwood.evals.multiple_choice import ChoiceResult, Question, answer_questions, read_questions
from budwood.evals.paired import Difference, TTest, paired_difference, paired_t_test
from budwood.evals.perplexity import Perplexity, measure_perplexity, windows_of
from budwood.evals.recall import ProbeScore, Recall, known_facts, nothing_new, score_probes
from budwood.evals.results import Comparison, EvalResult, Means, RowRecord, compare_results, write_records

__all__ = [
    "ChoiceResult",
    "Choices",
    "Comparison",
    "CurvePoint",
    "Difference",
    "EvalResult",
    "Generation",
    "Likelihood",
    "Means",
    "Perplexity",
    "ProbeScore",
    "Question",
    "Recall",
    "RowRecord",
    "Sampling",
    "TTest",
    "TotalKnowledge",
    "answer_questions",
    "base_of",
    "compare_results",
    "evaluate_rows",
    "exact_match",
    "generate",
    "known_facts",
    "learn_at_keep",
    "likelihoods",
    "lm_eval_model",
    "measure_choices",
    "measure_perplexity",
    "nll_at_keep",
    "nothing_new",
    "paired_difference",
    "paired_t_test",
    "read_questions",
    "rouge_l",
    "score_probes",
    "select_prompts",
    "stripped",
    "total_knowledge",
    "verbatim",
    "windows_of",
    "with_base",
    "write_records",
]
