"""JSON Schema of the two contracts, for editors and other programs: `python -m warpbeam.spec_schema docs/schema`.

Rendered from the models, never written by hand; a test says when the files are out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from warpbeam.job import Job, Section
from warpbeam.pool import Pool

MODELS: Final[dict[str, type[Section]]] = {"job-v1.json": Job, "pool-v1.json": Pool}


def render(model: type[Section]) -> str:
    """The schema as a file's text."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model.model_json_schema(by_alias=True)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write(folder: Path) -> list[Path]:
    """Write every schema into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, model in MODELS.items():
        path = folder / name
        path.write_text(render(model), encoding="utf-8")
        paths.append(path)
    return paths


if __name__ == "__main__":
    for written in write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/schema")):
        print(written)
