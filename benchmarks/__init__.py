"""Benchmarks: unlike tests, they report what they measure and assert nothing."""
