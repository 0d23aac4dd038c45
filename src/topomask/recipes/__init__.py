"""Ready configs for ``topomask train``."""
