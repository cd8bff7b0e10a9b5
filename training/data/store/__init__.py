"""Patch stores: the format, its reader and writer, and the tools that inspect or divide stores."""
