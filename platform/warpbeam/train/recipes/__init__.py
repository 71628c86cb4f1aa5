"""Built-in training loops, each written on the same Context that a user's own loop gets."""
