"""Imported when the first record is loaded. Importing it takes as long as a library does."""

import time

time.sleep(0.05)
