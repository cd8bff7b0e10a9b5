"""The probability that two images show one scene, fitted for a model and judged on other scenes."""
