"""Lock files with hashes, the bill of materials, and the digest of the base image."""
