#!/usr/bin/env bash
# The bare engine on one GPU: Qwen2.5-1.5B's shape, bf16, rows of 4096 tokens with several examples each.
# Needs torch (2.11 or later) and transformers (5.17 or later) and nothing else: no Ray, no DeepSpeed, no network.
# Prints the attention kernel, tokens/s, peak memory and MFU (6N + 12LHs); fails when attention falls to dense masks
# or examples see each other. `run.sh --tiny` runs the same on a CPU in seconds.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD/platform" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec timeout --signal=INT 460 python tests/gpu/bench_engine.py "$@"
