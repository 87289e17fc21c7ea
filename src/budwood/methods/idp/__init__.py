"""IDP: a bank of soft prompts in front of a frozen, usually compressed model, and for each input the choice of one.

Paper: https://arxiv.org/abs/2310.00867 (inference-time dynamic prompting). Learned: nothing beyond the prompts, which
are n_i · d numbers for prompt i, each trained alone by prompt tuning. Here is what runs them; README.md beside this
file states the maths, the selectors and where we deviate.
"""

from __future__ import annotations

from budwood.tuning.protocol import Method, Tuner

TUNERS: tuple[Tuner, ...] = ()
METHODS: tuple[Method, ...] = ()
