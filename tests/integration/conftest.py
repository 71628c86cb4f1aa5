"""Fixtures that every integration test may ask for."""

from __future__ import annotations

from tests.integration.s3_fixture import s3, warpbeam_home

__all__ = ["s3", "warpbeam_home"]
