"""Layers for other libraries, one module for each; importing a module needs its library."""
