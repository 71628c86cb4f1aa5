"""Serve: examples to copy. A package, so that an installed namesake never wins."""
