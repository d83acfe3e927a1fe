"""Memory that a training process frees, it soon needs again.

By default glibc returns freed memory at the top of the heap to the system, and gets large arrays from it one by one. A
training step allocates and frees the same arrays again and again, so part of its time goes into clearing pages.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # from malloc.h
KEPT = 1 << 28
LARGEST_ON_HEAP = 1 << 25  # the most that glibc accepts; larger arrays are returned at once


def keep_freed_memory() -> bool:
    """Let this process keep up to `KEPT` bytes that it has freed. Return False where the C library has no such
    setting (macOS, musl)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(TRIM_THRESHOLD, KEPT)) and bool(mallopt(MMAP_THRESHOLD, LARGEST_ON_HEAP))
