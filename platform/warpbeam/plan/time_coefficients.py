"""The fitted numbers of the time model, by name. Data in time_coefficients.json.

`python -m tests.benchmarks.planner_fit_time` refits them on published runs and says what each is; nothing else writes
the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

Coefficients = Mapping[str, float]

FILE: Final = Path(__file__).with_name("time_coefficients.json")
COEFFICIENTS: Final[Coefficients] = json.loads(FILE.read_text(encoding="utf-8"))["coefficients"]
