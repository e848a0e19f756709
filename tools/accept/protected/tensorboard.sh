#!/usr/bin/env bash
# TensorBoard's own reader lists what starling metrics does.
set -euo pipefail
exec tools/accept/e2e.sh curves_test.py
