"""What tests see of other processes."""

import os
import sys
import time
from fcntl import ioctl
from termios import FIONREAD


def await_unread(process: int, descriptor: int) -> None:
    """Wait until a pipe of a process holds what nobody has read yet."""
    pipe = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    while not int.from_bytes(ioctl(pipe, FIONREAD, bytes(4)), sys.byteorder):
        time.sleep(0.01)
    os.close(pipe)
