#!/usr/bin/env bash
# A browser opens the status page, and the pictures of the docs can be made.
set -euo pipefail
if ! command -v chromium >/dev/null; then
  echo "figure: no browser: run tools/setup.sh --pictures"
  exit 77
fi
tools/accept/e2e.sh page_test.py
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tools/pictures.sh "$folder"
for picture in "$folder"/*.png; do
  name=${picture##*/}
  if [[ ! -s docs/images/$name ]] || ! grep -q "images/$name" docs/metrics.md; then
    echo "figure: docs/images/$name is missing, or docs/metrics.md does not show it"
    exit 1
  fi
done
echo "figure: 3 views without a console error," \
  "$(find "$folder" -name '*.png' -size +20k | wc -l) pictures"
[[ $(find "$folder" -name '*.png' -size +20k | wc -l) -eq 3 ]]
