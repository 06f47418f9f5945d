"""`python -m atent` is `atent`.

Until the command runs, Ctrl-C ends the process as it ends other programs: nothing has begun, and there is no traceback.
"""

import os
import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from atent.cli import TORCHRUN, main

if __name__ == "__main__":
    try:
        main()
    except SystemExit as end:
        if TORCHRUN in os.environ:  # streams are flushed; what torch does at the end of a process may abort it
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise
