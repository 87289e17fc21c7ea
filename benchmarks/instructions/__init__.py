"""A quality table: GIFT, LoRA and others trained on instruction tasks. `python benchmarks/instructions.py --help`."""
