"""Helpers for files, optional imports, names and configs; they need neither torch nor the rest of the library."""
