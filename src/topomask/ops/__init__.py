"""Ops: tensors in, tensors out. Each op is a folder with a pure-torch ``reference.py``, which is the ground truth."""
