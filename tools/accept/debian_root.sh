#!/usr/bin/env bash
# To be sourced in the repository's root: makes a fresh Debian 12 root with only git installed and a
# clone of this tree in /starling, in $root, and removes it when the script ends. Needs root,
# mmdebstrap, and the machine's own apt configuration.

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
  if ((status != 0)); then echo "$2 ended with status $status"; fi
}
