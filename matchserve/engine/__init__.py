"""What all requests of the service share: slots to run in, and batches of patches."""
