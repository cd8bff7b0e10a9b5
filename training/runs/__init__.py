"""Train a recipe: batches, the loop, checkpoints, validation and reports."""
