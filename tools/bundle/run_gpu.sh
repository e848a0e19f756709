#!/bin/sh
# Checks and measures this machine with the bundle in this script's folder (docs/gpu_bundle.md).
#
#   run_gpu.sh [PART...] [--on cpu|gpu] [--json FILE]
#
# A PART is check, conformance, cluster, compute [NET...], servers [NET...], memcheck or racecheck,
# as in `run_gpu.sh check conformance compute resnet50`. Each has its own time limit, which it
# prints. Without a PART all but the last two run, in less than 8 minutes. The last line gives the
# verdict; --json writes the same for programs. Exit status 0: nothing failed.
#
# Needs a shell, dirname and tr, and for GPUs NVIDIA's driver, CUDA 13's libraries and cuDNN 9. It
# looks for these where the loader does, in the toolkit (CUDA_HOME, /usr/local/cuda), and in the
# packages of python3, whose PyTorch is measured, too. Without a GPU only the CPU's part runs, and
# the rest prints NOT RUN.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# folder_with LIBRARY FOLDER...: the first of the folders that contains it; otherwise nothing.
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

# The library folders of python3's NVIDIA packages, one per line.
wheel_folders() {
  command -v python3 >/dev/null || return 0
  python3 - <<'PYTHON' 2>/dev/null || true
import glob
import os
import site
import sys

places = sys.path + site.getsitepackages() + [site.getusersitepackages()]
for place in dict.fromkeys(places):
    for name in ("lib", "lib64"):
        for folder in sorted(glob.glob(os.path.join(place, "nvidia", "*", name))):
            print(folder)
PYTHON
}

toolkit=${CUDA_HOME:-/usr/local/cuda}
if [ ! -d "$toolkit" ] && nvcc=$(command -v nvcc); then
  toolkit=$(cd "$(dirname "$nvcc")/.." && pwd)
fi
folders="$toolkit/lib64 $toolkit/lib $toolkit/targets/x86_64-linux/lib"
wheels=$(wheel_folders)
loader=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null || true)
path=${LD_LIBRARY_PATH:-}
for library in libcudart.so.13 libcudnn.so.9 libcublas.so.13 libcublasLt.so.13 libnvrtc.so.13; do
  case $loader in
    *"$library"*) continue ;;
  esac
  # The loader's own path first. The lists are split at blanks on purpose.
  # shellcheck disable=SC2046,SC2086
  folder=$(folder_with "$library" $(echo "$path" | tr : ' ') $folders $wheels)
  if [ -z "$folder" ]; then
    echo "run_gpu: no $library: looked where the loader does, in $folders, in python3's packages"
    continue
  fi
  case ":$path:" in
    *":$folder:"*) ;;
    *) path=$path${path:+:}$folder ;;
  esac
done

# PyTorch brings its own libraries, and must find no others than before.
torch=""
torch_path=${LD_LIBRARY_PATH:-}
if command -v python3 >/dev/null &&
  python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  torch=$(command -v python3)
fi

sanitizer=$(command -v compute-sanitizer || true)
for program in "$toolkit/bin/compute-sanitizer" "$toolkit/compute-sanitizer/compute-sanitizer"; do
  if [ -z "$sanitizer" ] && [ -x "$program" ]; then sanitizer=$program; fi
done

LD_LIBRARY_PATH=$path
export LD_LIBRARY_PATH
exec "$here/starling-unpack" check "$@" ${torch:+--torch-python "$torch"} \
  ${torch_path:+--torch-library-path "$torch_path"} ${sanitizer:+--sanitizer "$sanitizer"}
