"""Maps of files that somebody may cut: what is gone reads as zeros and is told, where else the process would end.

Pages of a map behind the end of its file cannot be read: the kernel sends SIGBUS. However often the size is looked at,
a file can be cut between the look and the copy. So the signal is taken: its handler puts zeros in place of the rest of
that map and marks it; the copy goes on, and the reader, who looks at the size *after* each copy, raises an error that
says what happened. Java does so for its mapped buffers (JDK-4454115). Every other SIGBUS goes to whoever had it before.

The handler is called by the kernel in the thread that reads the map, in the middle of a copy, and is Python: that is
sound because the signal is not asynchronous. The thread is where a call into C has it, as with any callback. What the
handler of another signal raises meanwhile, such as KeyboardInterrupt, waits until the reader says that the file was
cut. (Python itself reports and drops what had been waiting before the handler began; the reader's error is all then.)
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import platform
import signal
import sys
import threading
import weakref

import numpy as np

# Where siginfo_t and sigaction are known to look as below: Linux, glibc and musl.
_KNOWN = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") and sys.maxsize > 2**32
_CODE_AT, _ADDRESS_AT = 8, 16  # in siginfo_t
_SA_SIGINFO = 4
_MAP_FIXED = 0x10


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


CUT: list[weakref.ref[mmap.mmap]] = []
"""Maps of which pages were replaced: none, as a rule, so that who reads need not ask ``was_cut``."""
# Where each guarded map begins. Maps go from here when nobody has them any more.
_begins: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()
# Raised in the handler by those of other signals.
_held_back: list[BaseException] = []
_ATTEMPTS = 8
_default = _Action()
_previous = _Action()
_found = _Action()


def guarded(descriptor: int, nbytes: int) -> mmap.mmap | None:
    """Map the first ``nbytes`` of a file for reading; None on a system where its pages cannot be guarded.

    What is read from it counts only if the file is as long afterwards and ``was_cut`` denies.

    Raises:
        OSError, ValueError: the system grants no map, or the file is shorter than that.
    """
    if not _KNOWN:
        return None
    mapping = mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ)
    _begins[mapping] = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
    stand_guard()
    return mapping


def begin_of(mapping: mmap.mmap) -> int:
    """Give the address at which a guarded map begins."""
    return _begins[mapping]


def was_cut(mapping: mmap.mmap) -> bool:
    """Whether pages of a guarded map had to be replaced by zeros."""
    return any(each() is mapping for each in CUT)


def raise_held_back() -> None:
    """Raise what has interrupted the replacement of pages, such as KeyboardInterrupt, in the thread that it was for."""
    if _held_back and threading.current_thread() is threading.main_thread():
        first = _held_back[0]
        _held_back.clear()
        raise first


def stand_guard() -> None:
    """See to it that SIGBUS comes to this module first: others, such as workers of torch, take it when they begin."""
    if _taken_by_another():
        before = _Action()
        _sigaction(_own, before)
        # Another thread may have seen the same and been quicker: what stands before us is not ourselves.
        if before.handler != _own.handler:
            ctypes.pointer(_previous)[0] = before


def _taken_by_another() -> bool:
    _sigaction(None, _found)
    return bool(_found.handler != _own.handler)


def _on_bus_error(_number: int, told: int, _context: int) -> None:
    was_replaced = False
    for _ in range(_ATTEMPTS):  # and no more: the same instruction must not come here for ever
        try:
            # Positive where the kernel itself says so.
            if ctypes.c_int.from_address(told + _CODE_AT).value > 0:
                was_replaced = _replace(ctypes.c_size_t.from_address(told + _ADDRESS_AT).value)
            break
        except BaseException as error:  # noqa: BLE001 whatever another handler raises; raise_held_back does so again
            _held_back.append(error)
    if not was_replaced:
        _pass_on(told)


def _replace(address: int) -> bool:
    """Put zeros in place of a guarded map's pages from ``address`` on; False where that is in none."""
    for reference in _begins.keyrefs():  # a list, made in one step: other threads map files meanwhile
        mapping = reference()
        if mapping is None or mapping.closed:
            continue
        begin = _begins[mapping]
        if not begin <= address < begin + _in_pages(len(mapping)):
            continue
        CUT.append(weakref.ref(mapping))  # before other threads can read a zero
        at = address - address % mmap.PAGESIZE
        nbytes = begin + _in_pages(len(mapping)) - at
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        return bool(_libc.mmap(at, nbytes, mmap.PROT_READ, flags, -1, 0) == at)
    return False


def _pass_on(told: int) -> None:
    """Give the signal to whoever had it before, and if it comes here again, let it end the process."""
    _sigaction(_previous, None)
    ctypes.pointer(_previous)[0] = _default
    # A fault comes again by itself when this returns; what a process has sent does not.
    if ctypes.c_int.from_address(told + _CODE_AT).value <= 0:
        os.kill(os.getpid(), signal.SIGBUS)


def _in_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _sigaction(new: _Action | None, old: _Action | None) -> None:
    if _libc.sigaction(int(signal.SIGBUS), new and ctypes.byref(new), old and ctypes.byref(old)):
        raise OSError(ctypes.get_errno(), "sigaction refused SIGBUS")


def _stand_down() -> None:
    """Before the interpreter goes, which the handler needs."""
    if not _taken_by_another():
        _sigaction(_previous, None)


if _KNOWN:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    _entry = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_on_bus_error)
    _own = _Action(ctypes.cast(_entry, ctypes.c_void_p).value, flags=_SA_SIGINFO)
    atexit.register(_stand_down)
