#!/usr/bin/env bash
# run_gpu.sh passes its arguments on, and finds libraries and compute-sanitizer wherever they may
# be. A program that prints its arguments stands in for the bundle.
set -euo pipefail
place="$TEST_TMPDIR/place"
mkdir -p "$place/bundle" "$place/programs"
cp "$1" "$place/bundle/run_gpu.sh"
cat >"$place/bundle/starling-unpack" <<'PROGRAM'
#!/bin/sh
echo "path $LD_LIBRARY_PATH"
for argument in "$@"; do echo "argument $argument"; done
PROGRAM
# The loader knows no NVIDIA library, whatever this machine has.
printf '#!/bin/sh\n' >"$place/programs/ldconfig"
chmod +x "$place/bundle/starling-unpack" "$place/programs/ldconfig"

fail() {
  echo "run_gpu_test: $*; it printed:" >&2
  echo "$output" >&2
  exit 1
}

# run NAME=VALUE... -- ARGUMENT...: output into $output; this machine's programs, no other
# environment.
run() {
  local -a settings=()
  while [[ "$1" != -- ]]; do
    settings+=("$1")
    shift
  done
  shift
  output=$(env -i PATH="$place/programs:/usr/bin:/bin" "${settings[@]}" \
    "$place/bundle/run_gpu.sh" "$@" 2>&1) ||
    fail "status $?"
}
path() { sed -n 's/^path //p' <<<"$output"; }

run CUDA_HOME="$place/none" -- check compute resnet50 --json "/tmp/a b"
expected=$(printf 'argument %s\n' check check compute resnet50 --json '/tmp/a b')
[[ "$(grep '^argument' <<<"$output")" == "$expected"* ]] || fail "expected its arguments in order"
grep -q 'no libcudnn.so.9: looked' <<<"$output" || fail "does not say what it has not found"

# A toolkit has its libraries in lib, in lib64, or by target.
for folder in lib lib64 targets/x86_64-linux/lib; do
  toolkit="$place/toolkit-${folder//\//-}"
  mkdir -p "$toolkit/$folder" "$toolkit/bin"
  touch "$toolkit/$folder/libcudnn.so.9" "$toolkit/$folder/libcublas.so.13"
  run CUDA_HOME="$toolkit" --
  [[ "$(path)" == "$toolkit/$folder" ]] || fail "expected $toolkit/$folder as the loader's path"
  ! grep -q sanitizer <<<"$output" || fail "found a sanitizer where none is"
  touch "$toolkit/bin/compute-sanitizer"
  chmod +x "$toolkit/bin/compute-sanitizer"
  run CUDA_HOME="$toolkit" --
  grep -qx "argument $toolkit/bin/compute-sanitizer" <<<"$output" ||
    fail "did not find the sanitizer"
done

# Python's packages.
for folder in lib lib64; do
  wheel="$place/site-$folder/nvidia/cudnn/$folder"
  mkdir -p "$wheel"
  touch "$wheel/libcudnn.so.9"
  run CUDA_HOME="$place/none" PYTHONPATH="$place/site-$folder" --
  [[ "$(path)" == "$wheel" ]] || fail "expected $wheel as the loader's path"
done
