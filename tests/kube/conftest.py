"""Fixtures for every test against a real API server."""

from __future__ import annotations

from tests.integration.s3_fixture import s3, warpbeam_home
from tests.kube.apiserver import apiserver

__all__ = ["apiserver", "s3", "warpbeam_home"]
