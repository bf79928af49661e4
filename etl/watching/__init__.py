"""The waits of a running loop: its times by loader, where they went, and the one change to make."""
