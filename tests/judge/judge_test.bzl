"""Tests in Python that need NumPy, which lives in an environment outside the tree."""

def judge_test(name, main, srcs = [], data = [], env = {}, size = "small"):
    """Runs `main` with the judges' Python (tools/setup.sh --tests), or skips, saying why.

    Args:
      name: the test's name.
      main: the Python file, a unittest.
      srcs: other Python files that it imports, found beside it.
      data: files that it reads.
      env: environment, in which $(location ...) of data is expanded.
      size: as everywhere.
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tests/judge:run_python.sh"],
        args = ["$(location %s)" % main],
        data = [main] + srcs + data,
        env = env,
    )
