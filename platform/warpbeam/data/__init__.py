"""From records to batches: read, render, tokenise, pack and seal (with Ray Data), then read by index (without Ray)."""
