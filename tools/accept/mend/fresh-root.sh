#!/usr/bin/env bash
# The quickstart and the plain tests in a fresh Debian root.
exec tools/accept/fresh_root.sh --no-sanitizers
