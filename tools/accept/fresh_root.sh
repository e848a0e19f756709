#!/usr/bin/env bash
# fresh_root.sh [OPTION...]: in a fresh Debian 12 root with only git installed, runs the quickstart,
# twice, and `tools/test.sh OPTION...`. Takes about an hour on 2 cores. Needs root, mmdebstrap, and
# the machine's own apt configuration.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ $EUID -ne 0 ]] || ! command -v mmdebstrap >/dev/null; then
  echo "figure: needs root and mmdebstrap (tools/setup.sh --tests)"
  exit 77
fi
root=$(mktemp -d "${TMPDIR:-/tmp}/starling-root.XXXXXX")
outputs=""
cleanup() {
  # Also unmounts everything below it, including mounts that a test left.
  umount -l "$root" || true
  rm -rf --one-file-system "$root" ${outputs:+"$outputs"}
}
# A mount of its own, like a real root: `ip netns exec` requires one.
mount --bind "$root" "$root"
trap cleanup EXIT
mount --make-private "$root"

mmdebstrap --quiet --variant=minbase --include=git,ca-certificates bookworm "$root" >&2
cp -rL /etc/apt/. "$root/etc/apt/"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
if [[ -f /etc/pip.conf ]]; then cp -L /etc/pip.conf "$root/etc/pip.conf"; fi
for place in proc dev sys; do
  mount --rbind "/$place" "$root/$place"
  mount --make-rslave "$root/$place"
done
git clone --quiet . "$root/starling"

# Passes on only the settings by which pip reaches packages from this machine.
mapfile -t pip_settings < <(env | grep '^PIP_' || true)
if [[ -f "${PIP_CERT:-}" ]]; then
  mkdir -p "$root$(dirname "$PIP_CERT")"
  cp -L "$PIP_CERT" "$root$PIP_CERT"
fi

# inside COMMAND: runs in the root, without this machine's environment. Its home, and thus Bazel's
# caches, are the root's own, so nothing that was built here is used.
inside() {
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "${pip_settings[@]}" \
    chroot "$root" bash -c "cd /starling && $1"
}

# run NAME COMMAND: runs inside, with its output in $outputs/NAME, which is then shown. Not through
# /dev/stderr: if it is a file, opening it again truncates it.
outputs=$(mktemp -d "${TMPDIR:-/tmp}/starling-root-outputs.XXXXXX")
run() {
  local status=0
  inside "$2" >"$outputs/$1" 2>&1 </dev/null || status=$?
  cat "$outputs/$1"
  if ((status != 0)); then echo "fresh-root: $2 ended with status $status"; fi
}

accuracy_of() { sed -n 's/^.*test_accuracy=\([0-9.]*\).*$/\1/p' "$outputs/$1" | tail -n 1; }

began=$SECONDS
run first tools/quickstart.sh
first_seconds=$((SECONDS - began))
began=$SECONDS
run second tools/quickstart.sh
second_seconds=$((SECONDS - began))
run tests "tools/test.sh $*"
inside "bazel shutdown" || true
accuracy=$(accuracy_of first) again=$(accuracy_of second)
tests=$(tail -n 1 "$outputs/tests")
echo "figure: accuracy ${accuracy:-none}, first run ${first_seconds} s with the download," \
  "second ${second_seconds} s; $tests"
awk -v a="${accuracy:-0}" -v b="${again:-0}" 'BEGIN { exit !(a >= 0.96 && b >= 0.96) }'
((second_seconds <= 60))
[[ "$tests" =~ ^[0-9]+\ passed,\ 0\ failed(,|$) ]]
