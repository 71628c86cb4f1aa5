#!/usr/bin/env bash
# An image that could not start is not built: what a pod of this kind imports, and what it calls, is there.
#   check.sh train|serve FOLDER
set -euo pipefail
kind=$1 bin=$2/bin
case $kind in
    train) modules="deepspeed torch ray ray.train.torch transformers kubernetes warpbeam.train.worker warpbeam.launch.pre_stop" ;;
    serve) modules="torch ray ray.serve transformers kubernetes warpbeam.serve.app" ;;
    *) echo "train or serve, not $kind" >&2 && exit 2 ;;
esac
"$bin/python" - $modules <<'PYTHON'
import importlib
import sys

for name in sys.argv[1:]:
    importlib.import_module(name)
PYTHON
for program in bash wget; do
    command -v "$program" > /dev/null || { echo "missing: $program" >&2; exit 1; }
done
"$bin/ray" --version
"$bin/warpbeam" version
