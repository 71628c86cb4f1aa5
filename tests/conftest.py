"""For every test: property tests without a clock, since shared machines stall."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("warpbeam", deadline=None, derandomize=True)
settings.load_profile("warpbeam")
