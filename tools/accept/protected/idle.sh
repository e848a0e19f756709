#!/usr/bin/env bash
set -euo pipefail
exec tools/accept/e2e.sh protected_test.py Protected.test_a_thousand_idle_connections_on_each_port
