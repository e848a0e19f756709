#!/usr/bin/env bash
# A healthy job beside misbehaving neighbours.
set -euo pipefail
exec tools/accept/e2e.sh neighbours.py
