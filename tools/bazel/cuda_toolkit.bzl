"""@cuda_toolkit: NVIDIA's CUDA toolkit with cuDNN if the machine has them, else empty.

The toolkit is searched in CUDA_HOME, else where the nvcc on the PATH belongs, else in
/usr/local/cuda. cuDNN's front end is a separate set of headers, which tools/setup.sh unpacks. A
machine without them builds everything else. CUDA_HOME=none builds without them on any machine.

@cuda_toolkit//:toolkit.bzl defines CUDA (True: there is a toolkit) and NVCC (its compiler's path);
@cuda_toolkit//:cuda and :cudnn_frontend are its libraries, which exist if CUDA is True.
"""

_CUDA_MAJOR = 13
_CUDNN_MAJOR = 9

def _defined(ctx, header, macro):
    """The integer that a header defines for `macro`; 0: no such definition or header."""
    if not header.exists:
        return 0
    for line in ctx.read(header).splitlines():
        words = [word for word in line.replace("\t", " ").split(" ") if word]
        if words[:2] == ["#define", macro] and len(words) > 2 and words[2].isdigit():
            return int(words[2])
    return 0

def _find(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "")
    if home == "none":
        return None
    if home:
        if not ctx.path(home).get_child("bin").get_child("nvcc").exists:
            fail(("CUDA_HOME is %s, where there is no bin/nvcc: expected CUDA toolkit %d; unset " +
                  "CUDA_HOME to have it looked for, or set it to none to build without CUDA") %
                 (home, _CUDA_MAJOR))
        return ctx.path(home)
    nvcc = ctx.which("nvcc")
    if nvcc != None:
        return nvcc.realpath.dirname.dirname
    prefix = ctx.path("/usr/local/cuda")
    return prefix if prefix.get_child("bin").get_child("nvcc").exists else None

def _frontend(ctx):
    """The folder with cudnn_frontend.h; None: tools/setup.sh has not run."""
    home = ctx.os.environ.get("HOME", "")
    cache = ctx.os.environ.get("XDG_CACHE_HOME", "") or home + "/.cache"
    if not cache.startswith("/"):
        return None
    include = ctx.path(cache + "/starling/cudnn-frontend/include")
    return include if include.get_child("cudnn_frontend.h").exists else None

def _usable(ctx, home):
    if home == None:
        return False
    include = home.get_child("include")
    cuda = _defined(ctx, include.get_child("cuda.h"), "CUDA_VERSION")
    cudnn = _defined(ctx, include.get_child("cudnn_version.h"), "CUDNN_MAJOR")
    return cuda // 1000 == _CUDA_MAJOR and cudnn == _CUDNN_MAJOR and _frontend(ctx) != None

_LIBRARIES = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cuda",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/*", "include/nv/**"]),
    includes = ["include"],
    linkopts = [
        "-L{lib}",
        "-Wl,--enable-new-dtags,-rpath,{lib}",
        "-lcudart_static",
        "-lrt",
        "-lpthread",
        "-ldl",
    ],
)

cc_library(
    name = "cudnn_frontend",
    hdrs = glob(["cudnn/include/**"]),
    includes = ["cudnn/include"],
    deps = [":cuda"],
)
"""

def _cuda_toolkit_impl(ctx):
    home = _find(ctx)
    if not _usable(ctx, home):
        ctx.file("toolkit.bzl", "CUDA = False\nNVCC = \"\"\n")
        ctx.file("BUILD.bazel", "")
        return
    ctx.file(
        "toolkit.bzl",
        "CUDA = True\nNVCC = \"%s\"\n" % home.get_child("bin").get_child("nvcc"),
    )
    ctx.symlink(home.get_child("include"), "include")
    ctx.symlink(_frontend(ctx), "cudnn/include")  # its headers include by this path
    ctx.file("BUILD.bazel", _LIBRARIES.format(lib = home.get_child("lib64")))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    configure = True,
    environ = ["CUDA_HOME", "HOME", "PATH", "XDG_CACHE_HOME"],
    local = True,
    doc = "Finds CUDA toolkit %d with cuDNN %d, or yields empty." % (_CUDA_MAJOR, _CUDNN_MAJOR),
)
