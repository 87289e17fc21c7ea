"""A quality table: month after month of changed text. `python benchmarks/temporalwiki.py --help`."""
