#!/usr/bin/env bash
# DeepSpeed's operators, built into the environment: a pod has a read-only image and no minutes to spare.
#   ops.sh FOLDER
set -euo pipefail
"$1/bin/python" -m warpbeam.train.ops
