"""Train a network that scores the pixels of an image, so that keypoints are found again."""
