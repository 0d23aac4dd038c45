"""Measurements, as opposed to tests: what comes out is reported, not asserted."""
