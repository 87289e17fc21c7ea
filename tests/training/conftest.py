import gc

import pytest


@pytest.fixture(autouse=True, scope="session")
def _quick_garbage_collection():
    """The Trainer collects garbage when it begins: half a second for the modules that are loaded, unless frozen."""
    gc.freeze()
