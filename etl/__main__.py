"""The command line as `python -m etl`."""

import sys

from etl.commands import main

sys.exit(main())
