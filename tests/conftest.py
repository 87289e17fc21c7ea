"""Fixtures that every test shares: a throw-away cache, tiny models and tokenizers made from configs."""

from __future__ import annotations

import gc
import os

# Before torch is imported: spinning OpenMP threads starve the other pytest worker.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest


def pytest_collection_finish() -> None:
    """Take what is imported by now out of the collector's sight.

    Accelerate collects garbage at the end of each training: two seconds with all of torch and transformers to look at.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch):
    """Give each test an empty cache, except tests of the real model, which share the user's (it holds 540 MB)."""
    if "smollm2" not in request.keywords:
        monkeypatch.setenv("BUDWOOD_CACHE", str(tmp_path_factory.mktemp("cache")))
