"""The service: HTTP in, matches out."""
