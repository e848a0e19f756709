#!/usr/bin/env bash
# BSP's bits do not depend on which shards die, and when.
set -euo pipefail
exec tools/accept/e2e.sh bsp_kill.py
