#!/usr/bin/env bash
# Prints the Debian packages of the libraries that programs are linked with, one per line, sorted.
#
#   packages.sh PROGRAM...
#
# Lists direct dependencies only: apt installs the dependencies of these packages.
set -euo pipefail
if (($# == 0)); then
  echo "usage: packages.sh PROGRAM..." >&2
  exit 2
fi

# The path of each library that a program names.
paths=()
for program in "$@"; do
  found=$(ldd "$program")
  while read -r library; do
    path=$(awk -v library="${library##*/}" \
      '{ n = split($0, word, /[ \t]+/); for (i = 1; i <= n; i++) {
         m = split(word[i], part, "/")
         if (m > 1 && part[m] == library) { print word[i]; exit } } }' \
      <<<"$found")
    if [[ -z "$path" ]]; then
      echo "packages: $program needs $library, which is not on this machine" >&2
      exit 1
    fi
    paths+=("$path")
  done < <(readelf --dynamic "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p')
done
mapfile -t paths < <(printf '%s\n' "${paths[@]}" | sort -u)

# dpkg knows some files by their path below /usr, others by their path through a symbolic link.
owners=$(dpkg-query --search "${paths[@]}" "${paths[@]/#//usr}" "${paths[@]/#\/usr/}" \
  2>/dev/null || true)
packages=()
for path in "${paths[@]}"; do
  package=$(awk -v path="${path#/usr}" \
    '{ owned = $2; sub("^/usr", "", owned)
       if (owned == path) { sub(":.*", "", $1); print $1; exit } }' \
    <<<"$owners")
  if [[ -z "$package" ]]; then
    echo "packages: $path is of no Debian package" >&2
    exit 1
  fi
  packages+=("$package")
done
printf '%s\n' "${packages[@]}" | sort -u
