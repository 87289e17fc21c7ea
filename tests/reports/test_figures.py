"""The curves of a run."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest

from budwood.reports.figures import learning_rate_curve, loss_curve, smoothed

EVENTS = [
    {"step": 0, "eval_loss": 2.0},
    {"step": 1, "loss": 2.0, "lr": 0.1, "grad_norm": 1.0},
    {"step": 2, "loss": None, "lr": 0.1, "grad_norm": None},
    {"step": 3, "loss": 1.0, "lr": 0.0, "grad_norm": 1.0, "eval_loss": 1.5},
]


@pytest.mark.parametrize(
    "draw", [lambda: loss_curve(EVENTS, 3), lambda: loss_curve(EVENTS[1:2], None), lambda: learning_rate_curve(EVENTS)]
)
def test_a_curve_is_sound_svg_with_no_date_and_no_outside(draw):
    svg = draw()
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert draw() == svg
    links = [value for each in root.iter() for name, value in each.attrib.items() if name.endswith("href")]
    assert all(link.startswith("#") for link in links)
    assert "<text" not in svg  # outlines: no font is needed


def test_drawing_leaves_the_settings_of_matplotlib_alone():
    before = dict(matplotlib.rcParams)
    loss_curve(EVENTS, 3)
    assert dict(matplotlib.rcParams) == before


def test_smoothing_is_a_mean_corrected_for_its_start():
    assert smoothed([3.0, 3.0, 3.0]) == pytest.approx([3.0] * 3)
    assert smoothed([1.0, 2.0], weight=0.5) == pytest.approx([1.0, (0.5 * 0.5 * 1 + 0.5 * 2) / 0.75])
    gap = smoothed([1.0, math.nan, 1.0])
    assert gap[0] == gap[2] == pytest.approx(1.0) and math.isnan(gap[1])
    assert smoothed([]) == []
