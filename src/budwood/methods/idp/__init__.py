"""IDP: a bank of soft prompts in front of a frozen, usually compressed model, and for each input the choice of one.

Paper: https://arxiv.org/abs/2310.00867 (inference-time dynamic prompting). Learned: nothing beyond the prompts, which
are n_i · d numbers for prompt i, each trained alone by prompt tuning on text of its own kind. README.md beside this
file states the maths, the selectors and where we deviate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from budwood.methods.idp.settings import BankSettings
from budwood.tuning.protocol import Method, Tuner

if TYPE_CHECKING:
    from budwood.methods.idp.lesson import BankLearner
    from budwood.methods.idp.published import BankFormat

TUNERS: tuple[Tuner, ...] = ()


def _learner() -> BankLearner:
    from budwood.methods.idp.lesson import BankLearner

    return BankLearner()


def _format() -> BankFormat:
    from budwood.methods.idp.published import BankFormat

    return BankFormat()


METHODS = (
    Method(
        name="idp",
        title="a bank of soft prompts on a compressed model, and for each input the choice of one",
        evidence="repair",
        tuner="prompt",
        default=True,
        paper="https://arxiv.org/abs/2310.00867",
        bibtex="""@article{hoang2023compressed,
  title = {Do Compressed LLMs Forget Knowledge? An Experimental Study with Practical Implications},
  author = {Hoang, Duc N. M. and Cho, Minsik and Merth, Thomas and Rastegari, Mohammad and Wang, Zhangyang},
  journal = {arXiv preprint arXiv:2310.00867},
  year = {2023}
}""",
        settings=BankSettings,
        training={"epochs": 4.0, "batch_size": 4, "schedule": "cosine", "final_fraction": 0.1},
        load_learner=_learner,
        mark="selector.json",
        load_format=_format,
    ),
)
