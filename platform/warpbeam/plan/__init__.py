"""Job x pool -> plan: pure arithmetic that imports neither torch nor ray nor transformers."""
