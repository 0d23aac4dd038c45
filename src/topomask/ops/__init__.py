"""Kernels: tensors in, tensors out. Each op has a folder with a pure-torch ``reference.py``, which is ground truth."""
