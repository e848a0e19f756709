#!/usr/bin/env bash
# The exported digits model, evaluated by NumPy from the file and the data alone.
set -euo pipefail
digits=$(tools/fetch_digits.sh)
exec tools/accept/e2e.sh export_accuracy_test.py --full "$digits"
