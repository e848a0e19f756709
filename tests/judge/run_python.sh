#!/usr/bin/env bash
# run_python.sh FILE: runs a unittest with the judges' Python.
set -euo pipefail

if [[ ! -x "${STARLING_JUDGE_PYTHON:-}" ]]; then
  echo "SKIPPED: no Python with NumPy: run tools/setup.sh --tests, and set STARLING_JUDGE_PYTHON" \
    "(tools/test.sh does both)"
  exit 0
fi
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
exec "$STARLING_JUDGE_PYTHON" "$@"
