"""Experiments, one per table or figure."""
