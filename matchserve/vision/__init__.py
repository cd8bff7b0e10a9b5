"""Pure functions on images and arrays: no files, no threads, no process-wide settings."""
