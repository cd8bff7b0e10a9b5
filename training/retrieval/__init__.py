"""Train the codebook of a model, and measure how well it finds images of the same scene."""
