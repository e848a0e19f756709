#!/usr/bin/env bash
# Makes the pictures under docs/images/ from a real run.
#
#   tools/pictures.sh [FOLDER]
#
# Trains on MNIST ($STARLING_DATA/mnist) for a few minutes and opens the status page in a browser
# (tools/setup.sh --pictures). Exit status: 0 made; 77 something that it needs is missing (it says
# what).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-docs/images}
if [[ ! -d "${STARLING_DATA:-}/mnist" ]]; then
  echo "figure: no MNIST: set STARLING_DATA to the folder that has mnist/"
  exit 77
fi
if ! command -v chromium >/dev/null; then
  echo "figure: no browser: run tools/setup.sh --pictures"
  exit 77
fi
bazel build //tests/e2e:binaries
PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 python3 tests/e2e/pictures.py "$folder"
