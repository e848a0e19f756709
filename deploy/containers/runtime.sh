#!/usr/bin/env bash
# A runtime stage: in a bare Debian 12, as root, installs what build.sh left for one image.
#
#   runtime.sh OUT/IMAGE
#
# Installs the packages and the programs, adds the user that they run as, and fails if a program
# misses a library.
set -euo pipefail
if (($# != 1)) || [[ ! -f "$1/packages" ]]; then
  echo "usage: runtime.sh OUT/IMAGE, a folder that build.sh left" >&2
  exit 2
fi
image=$1
mapfile -t packages <"$image/packages"

apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" \
  >/dev/null
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin

install -t /usr/local/bin "$image/bin"/*
groupadd --gid 10001 starling
useradd --uid 10001 --gid starling --no-create-home --home-dir /nonexistent \
  --shell /usr/sbin/nologin starling

for program in "$image/bin"/*; do
  if ldd "/usr/local/bin/$(basename "$program")" | grep "not found"; then
    echo "runtime: $(basename "$program") does not find the libraries above" >&2
    exit 1
  fi
done
