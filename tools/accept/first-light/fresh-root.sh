#!/usr/bin/env bash
# The quickstart and all tests in a fresh Debian root.
exec tools/accept/fresh_root.sh
