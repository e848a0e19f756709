#!/usr/bin/env bash
set -euo pipefail
exec tools/accept/e2e.sh shutdown.py
