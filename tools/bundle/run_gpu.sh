#!/bin/sh
# Checks and measures this machine with the bundle in this script's folder (docs/gpu_bundle.md).
#
#   run_gpu.sh
#
# Needs a shell, dirname and tr, and for GPUs NVIDIA's driver, CUDA 13's libraries and cuDNN 9, which
# it looks for: where the loader looks, in the toolkit (CUDA_HOME, /usr/local/cuda), and in python3's
# packages, whose PyTorch is measured, too. Without a GPU the CPU's part runs, and the rest prints NOT
# RUN. Takes less than 8 minutes. The last line says what holds; exit status 0: nothing failed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# folder_with LIBRARY FOLDER...: the first of the folders that has it; else nothing.
folder_with() {
  library=$1
  shift
  for folder in "$@"; do
    if [ -e "$folder/$library" ]; then
      echo "$folder"
      return
    fi
  done
}

# One a line: the folders of libraries that python3's packages of NVIDIA's brought.
wheel_folders() {
  command -v python3 >/dev/null || return 0
  python3 - <<'PYTHON' 2>/dev/null || true
import glob
import os
import sys

for place in sys.path:
    for folder in sorted(glob.glob(os.path.join(place, "nvidia", "*", "lib"))):
        print(folder)
PYTHON
}

toolkit=${CUDA_HOME:-/usr/local/cuda}
wheels=$(wheel_folders)
loader=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null || true)
path=${LD_LIBRARY_PATH:-}
for library in libcudnn.so.9 libcublas.so.13 libcublasLt.so.13 libnvrtc.so.13; do
  case $loader in
    *"$library"*) continue ;;
  esac
  # The loader's own path first; then what is split at blanks on purpose.
  # shellcheck disable=SC2046,SC2086
  folder=$(folder_with "$library" $(echo "$path" | tr : ' ') "$toolkit/lib64" $wheels)
  if [ -z "$folder" ]; then
    echo "run_gpu: no $library: looked where the loader does, in $toolkit/lib64, in python3's packages"
    continue
  fi
  case ":$path:" in
    *":$folder:"*) ;;
    *) path=$path${path:+:}$folder ;;
  esac
done

# PyTorch brings its own libraries, and is to find no others than before.
torch=""
torch_path=${LD_LIBRARY_PATH:-}
if command -v python3 >/dev/null &&
  python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  torch=$(command -v python3)
fi

LD_LIBRARY_PATH=$path
export LD_LIBRARY_PATH
exec "$here/starling-unpack" check ${torch:+--torch-python "$torch"} \
  ${torch_path:+--torch-library-path "$torch_path"}
