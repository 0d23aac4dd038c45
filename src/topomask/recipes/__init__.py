"""Ready configs for ``topomask train``, and what the command line shows of masks, graphs and runs."""
