"""Serving: a model folder behind the OpenAI API on Ray Serve, with exchangeable engines."""
