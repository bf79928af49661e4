"""Imported last by the server process that forks workers: from here on a Ctrl-C may reach it, which it ignores.

It is started with SIGINT blocked, so that one does not end it with a traceback while it imports; processes that it
forks for others must not inherit that.
"""

import signal

signal.sigtimedwait([signal.SIGINT], 0)  # forgets one that has come meanwhile
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
