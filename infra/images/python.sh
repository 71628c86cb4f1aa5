#!/usr/bin/env bash
# The environment of an image: Warpbeam with some of its extras, all versions from constraints.txt, bytecode compiled.
#   python.sh EXTRAS FOLDER      for example: train,kube /opt/warpbeam; from the repository's folder
set -euo pipefail
extras=$1 target=$2
python3 -m venv "$target"
"$target/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "$(sed -n 's/.*--quiet.*\(uv==[0-9.]*\).*/\1/p' Makefile)"
"$target/bin/uv" pip install --quiet --python "$target/bin/python" --compile-bytecode \
    --constraint constraints.txt ".[$extras]"
"$target/bin/python" -m pip uninstall --quiet --yes uv
