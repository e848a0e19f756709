"""Targets that need NVIDIA's toolkit: real where @cuda_toolkit has found it, else empty."""

load("@cuda_toolkit//:toolkit.bzl", "CUDA")
load("//tools/bazel:defs.bzl", "starling_cc_binary", "starling_cc_library", "starling_cc_test")

_LIBRARIES = ["@cuda_toolkit//:cuda"]

def starling_cuda_library(name, visibility = None, deps = [], **kwargs):
    """A starling_cc_library that may include the toolkit's headers."""
    if CUDA:
        starling_cc_library(
            name = name,
            visibility = visibility,
            deps = deps + _LIBRARIES,
            **kwargs
        )
    else:
        native.cc_library(name = name, visibility = visibility)

def starling_cuda_shared_object(name, exports, deps, visibility = None):
    """A shared object of the libraries in `deps`, which shows what the linker script `exports` names."""
    if CUDA:
        starling_cc_binary(
            name = name,
            linkshared = True,
            additional_linker_inputs = [exports],
            linkopts = ["-Wl,--version-script,$(location %s)" % exports],
            visibility = visibility,
            deps = deps,
        )
    else:
        native.filegroup(name = name, visibility = visibility)

def starling_cuda_test(name, **kwargs):
    """A starling_cc_test of what only exists with the toolkit; without it there is no such test."""
    if CUDA:
        starling_cc_test(name = name, **kwargs)
