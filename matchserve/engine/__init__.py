"""What many requests share: places to run in, batches of patches, deadlines and a cache."""
