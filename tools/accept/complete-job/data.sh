#!/usr/bin/env bash
# How fast samples are made, per core, and against libturbojpeg itself in the same run.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/mnist" || ! -d "${STARLING_DATA:-}/cifar10" ]]; then
  echo "figure: no data: set STARLING_DATA to the folder that has mnist/ and cifar10/"
  exit 77
fi
output=$(tools/bench.sh data)
echo "$output"
# rate NAME, ratio NAME: the medians in that row.
rate() { sed -n "s|^  $1  *\([0-9]*\) /s.*|\1|p" <<<"$output"; }
ratio() { sed -n "s|^  $1  *[0-9]* /s.* ratio \([0-9.]*\) .*|\1|p" <<<"$output"; }
mnist=$(rate "shuffle, normalise, batch")
decode=$(ratio "read from the tar file and decode")
augment=$(rate "read, decode, crop and flip, normalise, batch")
echo "figure: MNIST ${mnist:-no} images/s; tar and decode ${decode:-no} of libturbojpeg's speed;" \
  "augmented ${augment:-no} images/s"
awk -v m="${mnist:-0}" -v d="${decode:-0}" 'BEGIN { exit !(m >= 1e6 && d >= 0.90) }'
