"""`python -m etl`."""

import sys

from etl.commands import main

sys.exit(main())
