"""The parts of `benchmarks/idp.py`."""
