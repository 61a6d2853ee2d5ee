"""A lock on an open file, where the system has them."""

from __future__ import annotations

import errno
import sys

if sys.platform == "win32":

    def try_lock(fd: int, *, otherwise: bool) -> bool:
        """Windows has no flock: say `otherwise`."""
        return otherwise

else:
    from fcntl import LOCK_EX, LOCK_NB, flock

    def try_lock(fd: int, *, otherwise: bool) -> bool:
        """Take the lock on `fd` if nobody holds it; say whether. Where there are no locks, say `otherwise`."""
        try:
            flock(fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return otherwise
            raise
        return True
