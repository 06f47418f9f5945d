"""`python -m atent` is `atent`.

Until the command runs, Ctrl-C ends the process as it ends other programs: nothing has begun, and there is no traceback.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from atent.cli import main

if __name__ == "__main__":
    main()
