#!/usr/bin/env bash
# Makes docs/images/kills.svg, and the log kills.json that it is drawn from: a loss curve while a
# shard, a worker and the coordinator die.
#
#   tools/kills_picture.sh [--seed S]
#
# Trains on MNIST ($STARLING_DATA/mnist) twice, which takes some minutes. Exit status: 0 made; 77 no
# MNIST.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ! -d "${STARLING_DATA:-}/mnist" ]]; then
  echo "kills_picture: no MNIST: set STARLING_DATA to the folder that has mnist/" >&2
  exit 77
fi
bazel build --ui_event_filters=-info,-debug //tests/e2e:binaries >&2
export PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1
python3 tests/e2e/kills.py run docs/images/kills.json "$@"
python3 tests/e2e/kills.py draw docs/images/kills.json docs/images/kills.svg
