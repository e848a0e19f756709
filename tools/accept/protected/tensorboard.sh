#!/usr/bin/env bash
# TensorBoard's own reader lists the same values as starling metrics.
set -euo pipefail
exec tools/accept/e2e.sh curves_test.py
