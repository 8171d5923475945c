"""The heap: memory that arrays give back stays with the process, ready for the next second's.

Called once by `app`, for commands that judge windows for long. glibc hands every array of 128 KiB and more back to the kernel
when it is freed, and gets it again page by page, each cleared: with some hundred such arrays a second that was a fifth of what
the analysis costs.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT_BYTES = 32 << 20  # the most that glibc allows for one piece


def keep_freed_memory() -> bool:
    """Ask the C library for it; False where it knows no such thing (musl), and nothing is changed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(name, _KEPT_BYTES) == 1 for name in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))
