#!/usr/bin/env bash
# To be sourced: makes a root with only the files of Debian's package libc6, and runs commands in
# it, in separate namespaces without a network.

# bare_root FOLDER: makes the root there.
bare_root() {
  local root=$1 path programs
  mkdir -p "$root/proc" "$root/dev" "$root/tmp"
  touch "$root/dev/null"
  dpkg --listfiles libc6 | while read -r path; do
    if [[ -d "$path" ]]; then continue; fi
    mkdir -p "$root${path%/*}"
    cp -P --preserve=mode "$path" "$root$path"
  done
  programs=$(find "$root" -type f -perm /111 ! -name '*.so*')
  if [[ -n "$programs" ]]; then
    echo "figure: the root has programs: $programs"
    exit 1
  fi
  echo "the root has $(find "$root" -name '*.so*' ! -type d | wc -l) libraries of libc6" \
    "and no program"
}

# in_bare_root FOLDER COMMAND...: the loopback interface must be brought up from outside the root.
in_bare_root() {
  # shellcheck disable=SC2016
  unshare --user --map-root-user --mount --pid --net --fork bash -euc '
    ip link set lo up
    mount -t proc proc "$1/proc"
    mount --bind /dev/null "$1/dev/null"
    exec env -i "$(command -v chroot)" "$@"' bash "$@"
}
