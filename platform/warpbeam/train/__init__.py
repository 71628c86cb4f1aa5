"""The train engine: the Context that loops are written on, strategies, the built-in recipes; without Ray."""
