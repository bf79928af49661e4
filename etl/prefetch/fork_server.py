"""Unblocks SIGINT in the server process that forks workers, which imports this module last.

The server is started with SIGINT blocked, so that a Ctrl-C does not end it with a traceback while it imports. Once it
has imported everything it ignores SIGINT. Processes that it forks for other users must not inherit the blocked signal.
"""

import signal

signal.sigtimedwait([signal.SIGINT], 0)  # discards a SIGINT that has come meanwhile
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
