"""TAALM: learn facts from documents with token weights that a meta-learned scorer gives.

Paper: https://arxiv.org/abs/2407.16920 (Train-Attention). A scorer says of each token of a document how much learning
it helps with later questions; the adapter, any adapter, is then trained with those weights. README.md beside this file
states the maths, what is learned and where we deviate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.tuning.protocol import Method, Tuner

if TYPE_CHECKING:
    from budwood.methods.taalm.learner import DocumentLearner
    from budwood.methods.taalm.preparer import ScorerPreparer

TUNERS: tuple[Tuner, ...] = ()


def _learner() -> DocumentLearner:
    from budwood.methods.taalm.learner import DocumentLearner

    return DocumentLearner()


def _preparer() -> ScorerPreparer:
    from budwood.methods.taalm.preparer import ScorerPreparer

    return ScorerPreparer()


METHODS = (
    Method(
        name="taalm",
        title="facts from documents, with token weights from a meta-learned scorer",
        evidence="documents",
        tuner="lora",
        default=True,
        paper="https://arxiv.org/abs/2407.16920",
        bibtex="""@inproceedings{seo2024train,
  title = {Train-Attention: Meta-Learning Where to Focus in Continual Knowledge Learning},
  author = {Seo, Yeongbin and Lee, Dongha and Yeo, Jinyoung},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2024}
}""",
        accepts=frozenset({"prior", "weights", "rehearse", "update", "base_run", "probes"}),
        settings=DocumentSettings,
        training={"epochs": 10.0, "normalise": "sequence", "schedule": "constant", "learning_rate": 3e-4},
        load_learner=_learner,
        load_preparer=_preparer,
    ),
)
