#!/usr/bin/env bash
# Causes provoked by injected waits and link rates, and healthy jobs, judged by `starling explain`.
set -euo pipefail
exec tools/accept/e2e.sh explain.py
