"""Takes a laboratory down when the program that started it has gone, however it went.

    python -m tests.kube.lab.keeper FOLDER      (its standard input is a pipe from that program)

Reading a pipe that nobody writes to costs nothing, and ends after `kill -9` too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.layout import Place

if __name__ == "__main__":
    sys.stdin.buffer.read()
    Laboratory(Place(Path(sys.argv[1]))).down()
