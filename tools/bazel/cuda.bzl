"""Targets that need NVIDIA's toolkit; empty if @cuda_toolkit has not found it."""

load("@cuda_toolkit//:toolkit.bzl", "CUDA", "NVCC")
load("//tools/bazel:defs.bzl", "starling_cc_binary", "starling_cc_library", "starling_cc_test")

_LIBRARIES = ["@cuda_toolkit//:cuda"]

# Machine code for Hopper, and PTX, which drivers compile for newer GPUs.
_NVCC_FLAGS = " ".join([
    "-ccbin /usr/bin/g++",
    "-std=c++20",
    "-O3",
    "-gencode 'arch=compute_90,code=[sm_90,compute_90]'",
    "--Werror all-warnings",
    "-Xcompiler -fPIC,-Wall",
    "-I.",
])

def starling_cuda_library(
        name,
        visibility = None,
        srcs = [],
        cuda_srcs = [],
        cuda_hdrs = [],
        hdrs = [],
        deps = [],
        **kwargs):
    """A starling_cc_library that may include the toolkit's headers and have files for nvcc.

    Args:
      name: the library's name.
      visibility: as for any target.
      srcs: files for g++.
      cuda_srcs: .cu files, for nvcc.
      cuda_hdrs: headers that only the .cu files include.
      hdrs: headers for all files.
      deps: as for any library; nvcc does not see their headers.
      **kwargs: passed to starling_cc_library.
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
    """A shared object of the libraries in `deps`; the linker script `exports` selects its symbols.

    It looks for NVIDIA's libraries in `libraries` first, where tools/gpu_bundle.sh puts them.
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
    """A starling_cc_test that needs the toolkit; without it, the test skips itself."""
    if CUDA:
        starling_cc_test(name = name, **kwargs)
    else:
        native.sh_test(
            name = name,
            size = "small",
            srcs = ["//tools/testing:no_cuda_toolkit.sh"],
            tags = kwargs.get("tags", []),
        )
