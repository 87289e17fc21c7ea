"""Run files in, figures and one HTML page out. Imports no torch, and nothing of how the files came to be."""
