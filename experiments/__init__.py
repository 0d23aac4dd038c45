"""The papers' tables and figures, the galleries of masks, and the demo: run from a checkout, not installed."""
