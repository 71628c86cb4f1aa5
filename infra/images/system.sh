#!/usr/bin/env bash
# Debian packages of an image: a compiler for DeepSpeed's operators, wget for KubeRay's probes of serving pods.
#   system.sh
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet
apt-get install --yes --no-install-recommends bash ca-certificates g++ make procps wget
