"""The waits of a running loop: its times by loader, their cause, and the one change to make."""
