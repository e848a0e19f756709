#!/usr/bin/env bash
# e2e.sh FILE ARGUMENT...: builds the daemons, and runs a file of tests/e2e with the judges' Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python="${XDG_CACHE_HOME:-$HOME/.cache}/starling/judge/bin/python3"
if [[ ! -x "$python" ]]; then
  echo "figure: no Python with NumPy: run tools/setup.sh --tests"
  exit 77
fi
bazel build //tests/e2e:binaries //tests/e2e:spans
file=$1
shift
export PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1
exec "$python" "tests/e2e/$file" "$@"
