"""Compressed weights: fewer bits or fewer numbers, written as an ordinary dense model that everything can read."""
