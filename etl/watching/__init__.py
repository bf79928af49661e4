"""What a running loop waits for: its times by loader, where the time went, and the one change to make."""
