"""Pure functions on images and arrays: no I/O beyond the bytes given, no web, no torch."""
