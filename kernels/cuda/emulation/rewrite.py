"""Turns a .cu or .cuh file into C++ for device_code.h: only launches and shared arrays.

    Kernel<T><<<grid, block, shared, stream>>>(args);   becomes   Launch("Kernel", ..., args);
    __shared__ float tile[32][33];                      becomes   auto& tile = Shared<...>(...);
"""

import re
import sys


def closing(text, at):
    """The index of the parenthesis that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    sys.exit("rewrite.py: a parenthesis is not closed")


def launches(text):
    while "<<<" in text:
        mark = text.index("<<<")
        end = text.index(">>>", mark)
        name = re.search(r"\w+(<[\w, ]+>)?$", text[:mark])
        if name is None or text[end + 3] != "(":
            sys.exit("rewrite.py: no launch: " + text[mark - 40 : end + 20])
        close = closing(text, end + 3)
        kernel, args = name.group(), text[end + 4 : close]
        if args:
            args = ", " + args
        text = (
            text[: name.start()]
            + '::starling::emulation::Launch("%s", %s, [](auto... a) { %s(a...); }%s)'
            % (kernel, text[mark + 3 : end], kernel, args)
            + text[close + 1 :]
        )
    return text


def main():
    text = open(sys.argv[1], encoding="utf-8").read()
    text = re.sub(
        r"__shared__ (\w+) (\w+)((?:\[[^\]]*\])+);",
        r"auto& \2 = ::starling::emulation::Shared<\1\3>(__FILE__, __LINE__);",
        text,
    )
    if "__shared__" in text:
        sys.exit("rewrite.py: shared memory that is no array of fixed size")
    text = re.sub(r'"kernels/cuda/(\w+\.cuh)"', r'"kernels/cuda/emulation/\1"', text)
    print('#line 1 "%s"\n%s' % (sys.argv[1], launches(text)), end="")


main()
