"""Targets that need NVIDIA's toolkit: real where @cuda_toolkit has found it, else empty."""

load("@cuda_toolkit//:toolkit.bzl", "CUDA", "NVCC")
load("//tools/bazel:defs.bzl", "starling_cc_binary", "starling_cc_library", "starling_cc_test")

_LIBRARIES = ["@cuda_toolkit//:cuda"]

# Machine code for Hopper, and PTX, which drivers compile for what is newer.
_NVCC_FLAGS = " ".join([
    "-ccbin /usr/bin/g++",
    "-std=c++20",
    "-O3",
    "-gencode 'arch=compute_90,code=[sm_90,compute_90]'",
    "--Werror all-warnings",
    "-Xcompiler -fPIC,-Wall",
    "-I.",
])

def starling_cuda_library(name, visibility = None, srcs = [], cuda_srcs = [], cuda_hdrs = [], hdrs = [], deps = [], **kwargs):
    """A starling_cc_library that may include the toolkit's headers, and files for nvcc.

    Args:
      name: its name.
      visibility: as ever.
      srcs: for g++.
      cuda_srcs: .cu files, for nvcc.
      cuda_hdrs: what they include beyond hdrs.
      hdrs: for all of them.
      deps: as ever; nvcc does not see their headers.
      **kwargs: starling_cc_library's.
    """
    if not CUDA:
        native.cc_library(name = name, visibility = visibility)
        return
    objects = []
    for source in cuda_srcs:
        object = source.replace(".cu", ".pic.o")
        native.genrule(
            name = "%s_%s" % (name, source.replace(".cu", "")),
            srcs = [source] + hdrs + cuda_hdrs,
            outs = [object],
            cmd = "%s %s -c $(location %s) -o $@" % (NVCC, _NVCC_FLAGS, source),
            message = "Compiling (nvcc)",
        )
        objects.append(object)
    starling_cc_library(
        name = name,
        srcs = srcs + objects,
        hdrs = hdrs,
        visibility = visibility,
        deps = deps + _LIBRARIES,
        **kwargs
    )

def starling_cuda_shared_object(name, exports, deps, libraries = "$$ORIGIN/lib", visibility = None):
    """A shared object of the libraries in `deps`, which shows what the linker script `exports` names.

    It looks for NVIDIA's libraries in `libraries` first: what tools/gpu_bundle.sh puts beside it.
    """
    if CUDA:
        starling_cc_binary(
            name = name,
            linkshared = True,
            additional_linker_inputs = [exports],
            linkopts = [
                "-Wl,--version-script,$(location %s)" % exports,
                "-Wl,-rpath," + libraries,
            ],
            visibility = visibility,
            deps = deps,
        )
    else:
        native.filegroup(name = name, visibility = visibility)

def starling_cuda_test(name, **kwargs):
    """A starling_cc_test of what only exists with the toolkit; without it there is no such test."""
    if CUDA:
        starling_cc_test(name = name, **kwargs)
