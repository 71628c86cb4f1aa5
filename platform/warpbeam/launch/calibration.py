"""Where corrections are kept: WARPBEAM_HOME/calibration/<pool>.json, so that a plan reads them without any network."""

from __future__ import annotations

import json
import os
from pathlib import Path

from warpbeam.errors import UserError
from warpbeam.plan.correction import Correction


def path_of(pool: str) -> Path:
    """The file of one pool's correction."""
    home = Path(os.environ.get("WARPBEAM_HOME") or "~/.warpbeam").expanduser()
    return home / "calibration" / f"{pool}.json"


def read_correction(pool: str | None, accelerator: str) -> Correction | None:
    """What runs on this pool and accelerator (as the pool names it) taught; None where nobody has calibrated."""
    if pool is None:
        return None
    path = path_of(pool)
    try:
        found = Correction.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, UserError) as error:
        raise UserError(
            f"the calibration {path} cannot be read",
            why=error.what if isinstance(error, UserError) else str(error),
            fix=f"remove it, or measure again: `warpbeam calibrate RUN --pool {pool}`",
            reason="bad_calibration",
        ) from error
    return found if found.accelerator == accelerator else None


def write_correction(correction: Correction) -> Path:
    """Replace the pool's correction; returns where it is."""
    path = path_of(correction.pool)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(correction.to_dict(), indent=2) + "\n", encoding="utf-8")
    part.replace(path)
    return path
