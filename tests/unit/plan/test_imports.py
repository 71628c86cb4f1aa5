"""A plan is made on a laptop: nothing heavy is imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import pkgutil, sys, warpbeam.plan
for module in pkgutil.walk_packages(warpbeam.plan.__path__, "warpbeam.plan."):
    __import__(module.name)
names = ("torch", "ray", "transformers", "deepspeed", "numpy", "scipy", "pandas")
heavy = [name for name in names if name in sys.modules]
print(len(list(pkgutil.walk_packages(warpbeam.plan.__path__))), heavy)
"""


def test_planning_imports_nothing_heavy() -> None:
    command = [sys.executable, "-c", PROGRAM]
    environment = {"PYTHONPATH": str(ROOT / "platform"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    count, _, heavy = done.stdout.strip().partition(" ")
    assert int(count) > 15
    assert heavy == "[]"
