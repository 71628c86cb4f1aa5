"""A chat endpoint to copy."""
