#!/usr/bin/env bash
# The digits model, used by `starling predict` and by NumPy.
set -euo pipefail
digits=$(tools/fetch_digits.sh)
exec tools/accept/e2e.sh predict_test.py --full "$digits" Predict.test_digits
