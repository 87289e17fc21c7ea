"""A quality table: token weights on facts to learn. `python benchmarks/lama_ckl.py --help`."""
