#!/usr/bin/env bash
# cases.sh [--prove]: judges cases.txt row by row: see cases.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
judge="${XDG_CACHE_HOME:-$HOME/.cache}/starling/judge/bin/python3"
if [[ -x "$judge" ]]; then export STARLING_JUDGE_PYTHON=$judge; fi
exec python3 tools/accept/mend/cases.py "$@"
