"""Link options for a binary that links Debian's static archives.

The -lNAME options of //third_party stay on the command line after these options, but have nothing
left to resolve, so --as-needed drops them. The object files are the same as for other binaries.
"""

load("//third_party:absl.bzl", "ABSL_LIBS")

# The last line has the dependencies of gRPC's archives. Order does not matter in a group.
_ARCHIVES = [
    "grpc++_reflection", "grpc++", "grpc", "gpr", "protobuf",
    "yaml-cpp", "sqlite3", "turbojpeg",
    "address_sorting", "upb", "re2", "cares", "ssl", "crypto", "z",
]

# All libraries except the compiler's own and those without archives in Debian: oneDNN, spdlog, fmt
# and xxhash's dispatch. For programs only: Abseil's archives are not built for shared objects. The
# archives' symbols are not exported, so that a shared object with its own Abseil does not bind to
# parts of this one.
STATIC_LINKOPTS = (
    ["-Wl,--as-needed", "-Wl,--start-group"] +
    ["-l:lib%s.a" % name for name in _ARCHIVES + ["absl_" + name for name in ABSL_LIBS]] +
    ["-Wl,--end-group", "-Wl,--exclude-libs,ALL", "-ldl", "-lpthread"]
)
