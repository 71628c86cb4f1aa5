"""The repository's shape: what must be there, and the one file that must never be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_platform_never_shadows_the_standard_library() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    program = "import platform; assert platform.system(); import warpbeam; print(platform.__file__, warpbeam.__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    stdlib, ours = done.stdout.split()
    assert not Path(stdlib).is_relative_to(ROOT / "platform")
    assert Path(ours).is_relative_to(ROOT / "platform" / "warpbeam")


def test_users_packages_are_packages() -> None:
    assert (ROOT / "jobs" / "__init__.py").is_file()
    assert (ROOT / "serve" / "__init__.py").is_file()


def test_every_test_folder_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []
