"""Layers for other libraries, one module per library; importing a module requires its library."""
