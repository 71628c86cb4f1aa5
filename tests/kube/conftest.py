"""Fixtures of every test against a real API server: one alone, or the laboratory with its nodes."""

from __future__ import annotations

from tests.integration.s3_fixture import s3, warpbeam_home
from tests.kube.apiserver import apiserver
from tests.kube.lab_fixture import api, lab, with_kueue

__all__ = ["api", "apiserver", "lab", "s3", "warpbeam_home", "with_kueue"]
