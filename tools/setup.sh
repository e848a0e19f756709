#!/usr/bin/env bash
# Installs what a build needs, on Debian 12. Quick if everything is installed.
#
#   tools/setup.sh [--tests] [--pictures] [--peers]
#
# --tests adds what only tests need: clang-16 and its sanitizers, clang-format-16, shellcheck,
# shfmt, openssl, curl, iproute2, mount, mmdebstrap; a Python environment with numpy, safetensors
# and tensorboard, which judge our files independently, and with kubernetes-validate, which with
# Debian's kubectl 1.20 judges our manifests (36 MB to fetch, 180 MB on disk); and Debian's
# prometheus and promtool, which judge our metrics and alerts (20 MB, 100 MB on disk).
# --pictures adds a browser, which opens the status page (tools/pictures.sh).
# --peers adds PyTorch, with which tools/bench.sh compute compares, in a separate Python environment
# (3 GB to fetch, 5.4 GB on disk, mostly CUDA libraries, without which PyPI's build does not load),
# and what torch.compile needs.
#
# Exit status: 0 ready; 1 a command must be run by hand (it is printed), or PyTorch could not be
# installed; 2 another system, or a wrong argument.
set -euo pipefail

build_packages=(
  git g++ mold bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-skylib
  protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc++-dev
  libabsl-dev libspdlog-dev libfmt-dev libyaml-cpp-dev nlohmann-json3-dev
  libcli11-dev libsqlite3-dev zlib1g-dev libxxhash-dev libssl-dev
  libdnnl-dev librandom123-dev libturbojpeg0-dev libgtest-dev libgmock-dev libbenchmark-dev
)
test_packages=(
  python3 python3-venv clang-16 libclang-rt-16-dev clang-format-16 shellcheck shfmt mmdebstrap
  openssl curl iproute2 mount
)
picture_packages=(chromium fonts-dejavu-core)
peer_packages=(python3 python3-venv python3-dev)
judge_requirements=(
  numpy==1.26.4 safetensors==0.4.5 kubernetes-validate==1.37.0 absl-py==2.5.1 protobuf==7.36.2
)
# Without dependencies: 6 MB instead of 20 to read event files.
judge_bare_requirements=(tensorboard==2.18.0)
# All other dependencies are pinned by torch itself.
peer_requirements=(
  torch==2.15.0 numpy==2.4.6 filelock==4.2.11 fsspec==2026.9.0 jinja2==3.1.6 markupsafe==3.0.4
  mpmath==1.3.0 networkx==3.6.1 setuptools==84.2.1 sympy==1.14.0 typing-extensions==4.16.0
)
judge="${XDG_CACHE_HOME:-$HOME/.cache}/starling/judge"
kubectl="${XDG_CACHE_HOME:-$HOME/.cache}/starling/kubectl-1.20"
peers="${XDG_CACHE_HOME:-$HOME/.cache}/starling/peers"
prometheus="${XDG_CACHE_HOME:-$HOME/.cache}/starling/prometheus"
# tools/bazel/cuda_toolkit.bzl looks for it there.
cudnn_frontend="${XDG_CACHE_HOME:-$HOME/.cache}/starling/cudnn-frontend"
cudnn_frontend_version=1.32.0

with_tests=false with_pictures=false with_peers=false
for argument in "$@"; do
  case "$argument" in
    --tests) with_tests=true ;;
    --pictures) with_pictures=true ;;
    --peers) with_peers=true ;;
    *)
      echo "usage: tools/setup.sh [--tests] [--pictures] [--peers]" >&2
      exit 2
      ;;
  esac
done

require_debian_12() {
  local id="" version=""
  if [[ -r /etc/os-release ]]; then
    # shellcheck source=/dev/null
    id=$(. /etc/os-release && echo "${ID:-}")
    # shellcheck source=/dev/null
    version=$(. /etc/os-release && echo "${VERSION_ID:-}")
  fi
  [[ "$id" == debian && "$version" == 12 ]] && return
  cat >&2 <<EOF
setup: this is ${id:-an unknown system} ${version}, and Starling builds on Debian 12.
Use a Debian 12 machine or container (for example:
  docker run --rm -it -v "\$PWD:/starling" -w /starling debian:12
) and run tools/setup.sh there.
EOF
  exit 2
}

# Prints the arguments that are not installed.
missing_packages() {
  local installed
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
    awk '$2 == "installed" { print $1 }') || true
  comm -13 <(sort -u <<<"$installed") <(printf '%s\n' "$@" | sort -u)
}

install_packages() {
  local install="apt-get install -y --no-install-recommends $*"
  if [[ $EUID -eq 0 ]]; then
    echo "setup: installing $*"
    sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install -qq" >/dev/null
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
    echo "setup: installing $* (with sudo)"
    sudo sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install -qq" >/dev/null
  else
    cat >&2 <<EOF
setup: packages are missing, and installing them takes root. Run this as root:
  apt-get update && $install
EOF
    exit 1
  fi
}

# make_environment FOLDER REQUIREMENT... [--bare REQUIREMENT...]: a Python environment; the bare
# ones come without their dependencies. Built beside the existing one, which it replaces only when
# complete. Status 1: something could not be installed; says so.
make_environment() {
  local folder=$1 fresh="$1.new" all
  local -a whole=() bare=()
  shift
  while (($# > 0)); do
    if [[ "$1" == --bare ]]; then
      bare=("${@:2}")
      break
    fi
    whole+=("$1")
    shift
  done
  all="${whole[*]}${bare:+ ${bare[*]}}"
  [[ -f "$folder/requirements" && "$(<"$folder/requirements")" == "$all" ]] && return
  echo "setup: making a Python environment in $folder"
  rm -rf "$fresh"
  if python3 -m venv "$fresh" &&
    "$fresh/bin/python3" -m pip install --quiet --disable-pip-version-check "${whole[@]}" &&
    { ((${#bare[@]} == 0)) ||
      "$fresh/bin/python3" -m pip install --quiet --disable-pip-version-check --no-deps \
        "${bare[@]}"; }; then
    rm -rf "$folder"
    mv -T "$fresh" "$folder"
    echo "$all" >"$folder/requirements"
  else
    rm -rf "$fresh"
    echo "setup: could not install $all" >&2
    return 1
  fi
}

# unpack FOLDER PACKAGE PROGRAM...: unpacks Debian's programs without installing them: the machine
# may have others, which stay on the PATH, and no service is started.
unpack() {
  local folder=$1 package=$2 scratch program
  shift 2
  for program in "$@"; do [[ -x "$folder/$program" ]] || break; done
  [[ -x "$folder/$program" ]] && return
  echo "setup: unpacking Debian's $package into $folder"
  scratch=$(mktemp -d)
  if (
    cd "$scratch"
    apt-get download -qq -o APT::Sandbox::User=root "$package" ||
      { [[ $EUID -eq 0 ]] && apt-get update -qq &&
        apt-get download -qq -o APT::Sandbox::User=root "$package"; }
    dpkg-deb -x "$package"_*.deb .
  ) >"$scratch/log" 2>&1; then
    mkdir -p "$folder"
    for program in "$@"; do mv "$scratch/usr/bin/$program" "$folder/$program"; done
  else
    cat "$scratch/log" >&2
    echo "setup: could not unpack $package; the tests that need it will be skipped" >&2
  fi
  rm -rf "$scratch"
}

has_cuda_toolkit() {
  [[ "${CUDA_HOME:-}" != none ]] || return
  [[ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]] || command -v nvcc >/dev/null
}

# The headers through which kernels/cuda uses cuDNN, from a wheel that is not installed.
unpack_cudnn_frontend() {
  local stamp="$cudnn_frontend/version" scratch
  [[ -f "$stamp" && "$(<"$stamp")" == "$cudnn_frontend_version" ]] && return
  echo "setup: unpacking the headers of nvidia-cudnn-frontend into $cudnn_frontend"
  scratch=$(mktemp -d)
  if python3 -m venv "$scratch/python" &&
    "$scratch/python/bin/python3" -m pip download --quiet --disable-pip-version-check --no-deps \
      --dest "$scratch" "nvidia-cudnn-frontend==$cudnn_frontend_version" &&
    "$scratch/python/bin/python3" - "$scratch" <<'UNPACK'
import glob, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
wheel.extractall(sys.argv[1], [name for name in wheel.namelist() if name.startswith("include/")])
UNPACK
  then
    rm -rf "$cudnn_frontend"
    mkdir -p "$cudnn_frontend"
    mv "$scratch/include" "$cudnn_frontend/include"
    echo "$cudnn_frontend_version" >"$stamp"
  else
    echo "setup: could not fetch nvidia-cudnn-frontend $cudnn_frontend_version from PyPI;" \
      "the worker is built without its CUDA backend" >&2
  fi
  rm -rf "$scratch"
}

require_debian_12
packages=("${build_packages[@]}")
if $with_tests; then packages+=("${test_packages[@]}"); fi
if has_cuda_toolkit; then packages+=(python3 python3-venv); fi
if $with_pictures; then packages+=("${picture_packages[@]}"); fi
if $with_peers; then packages+=("${peer_packages[@]}"); fi
mapfile -t missing < <(missing_packages "${packages[@]}")
if ((${#missing[@]} > 0)); then install_packages "${missing[@]}"; fi
if has_cuda_toolkit; then unpack_cudnn_frontend; fi
if $with_tests; then
  # Tests that need the judges skip themselves, with a reason, if there are none.
  make_environment "$judge" "${judge_requirements[@]}" --bare "${judge_bare_requirements[@]}" ||
    echo "setup: the tests that need these will be skipped," \
      "or fail with what was installed before" >&2
  unpack "$kubectl" kubernetes-client kubectl
  unpack "$prometheus" prometheus prometheus promtool
fi
if $with_peers; then make_environment "$peers" "${peer_requirements[@]}"; fi
