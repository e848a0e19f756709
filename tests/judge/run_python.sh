#!/usr/bin/env bash
# run_python.sh FILE: runs a unittest with the judges' Python; its last line is
# `N passed, M failed`.
set -euo pipefail

if [[ ! -x "${STARLING_JUDGE_PYTHON:-}" ]]; then
  echo "SKIPPED: no Python with NumPy: run tools/setup.sh --tests, and set STARLING_JUDGE_PYTHON" \
    "(tools/test.sh does both)"
  exit 0
fi
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
log="$TEST_TMPDIR/log"
status=0
"$STARLING_JUDGE_PYTHON" "$@" 2>&1 | tee "$log" || status=$?
ran=$(sed -n 's/^Ran \([0-9]*\) tests\{0,1\} in .*/\1/p' "$log")
bad=0
for count in $(sed -n 's/^FAILED (\(.*\))$/\1/p' "$log" | tr -cs '0-9' ' '); do
  bad=$((bad + count))
done
echo "$((${ran:-0} - bad)) passed, $bad failed"
exit "$status"
