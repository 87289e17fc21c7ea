"""Training: one `transformers.Trainer` with an exact weighted loss, and the files of a run."""
