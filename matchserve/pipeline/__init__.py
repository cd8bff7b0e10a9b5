"""The steps from two images to a result, which `Matcher` runs in order."""
