"""How much processor time others take while something runs in a root of its own.

    others.py ROOT

Until SIGTERM, adds up the processor time of all processes whose root directory is not ROOT, except
this one and kernel threads. Then prints one line, which says NOT QUIET if that was more than QUIET
processors on average. Misses processes that live for less than PERIOD.
"""

import os
import signal
import sys
import time

PERIOD = 2  # seconds
QUIET = 0.1  # processors
TICKS = os.sysconf("SC_CLK_TCK")


def others(root):
    """{(pid, start): seconds of processor time} of the processes that count."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(pid) == os.getpid() or os.readlink(f"/proc/{pid}/root").startswith(root):
                continue
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            if not os.path.getsize(f"/proc/{pid}/exe"):
                continue
        except OSError:  # it ended, or is a kernel thread, which has no program
            continue
        found[pid, fields[19]] = (int(fields[11]) + int(fields[12])) / TICKS
    return found


def main():
    root = os.path.realpath(sys.argv[1])
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    began = time.monotonic()
    used, before = 0.0, others(root)
    while not stop:
        time.sleep(PERIOD)
        now = others(root)
        used += sum(seconds - before.get(key, 0.0) for key, seconds in now.items())
        before = now
    average = used / (time.monotonic() - began)
    said = "quiet machine" if average <= QUIET else "NOT QUIET"
    print(
        f"{said}: other processes took {average:.2f} of "
        f"{len(os.sched_getaffinity(0))} processors on average"
    )


if __name__ == "__main__":
    main()
