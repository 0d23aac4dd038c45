"""Files, optional packages, names and configs: what needs neither torch nor the rest of the library."""
