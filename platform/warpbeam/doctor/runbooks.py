"""Write the runbooks: one page a kind, from the rules' own words, so that neither can drift from the other.

python -m warpbeam.doctor.runbooks infra/runbooks
"""

from __future__ import annotations

import sys
from pathlib import Path

from warpbeam.doctor.kinds import PAGES, Kind
from warpbeam.doctor.words import page


def pages() -> dict[str, str]:
    """File names and their contents."""
    rows = [f"| [{kind}]({kind}.md) | {PAGES[kind].meaning} |" for kind in Kind]
    index = [
        "# Runbooks",
        "",
        "One page for each kind of finding that `warpbeam doctor` makes: meaning, how to confirm it by hand, the fix.",
        "Written by `make runbooks` from the rules; a test compares. Where no clock tells which of two causes came",
        "first, the doctor takes the one that stands further up here.",
        "",
        "| kind | meaning |",
        "|---|---|",
        *rows,
    ]
    return {"README.md": "\n".join(index) + "\n", **{f"{kind}.md": page(kind) for kind in Kind}}


def main() -> None:
    """Write all pages into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
