"""``python -m mxstats`` is ``mxstats``."""

import sys

from mxstats.cli import main

sys.exit(main())
