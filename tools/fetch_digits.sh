#!/usr/bin/env bash
# Prints the path of the UCI handwritten digits (1,797 rows), which Debian's package python3-sklearn
# contains. Fetches and unpacks them (2 MB), without installing the package, if they are missing.
#
#   tools/fetch_digits.sh
set -euo pipefail
if (($# > 0)); then
  echo "usage: tools/fetch_digits.sh" >&2
  exit 2
fi
folder="${XDG_CACHE_HOME:-$HOME/.cache}/starling/digits"
digits="$folder/digits.csv.gz"
if [[ ! -f "$digits" ]]; then
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  echo "fetching Debian's package python3-sklearn (2 MB), which carries the digits" >&2
  if ! (cd "$unpacked" && apt-get download python3-sklearn) >&2; then
    cat >&2 <<HELP
fetch_digits: apt cannot download python3-sklearn. If its lists are empty or old,
run this as root: apt-get update
HELP
    exit 1
  fi
  dpkg-deb -x "$unpacked"/python3-sklearn_*.deb "$unpacked"
  found="$unpacked/usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz"
  gzip -t "$found"
  # Renamed last, so that an existing file is complete.
  mkdir -p "$folder"
  cp "$found" "$folder/new.$$"
  mv "$folder/new.$$" "$digits"
fi
echo "$digits"
