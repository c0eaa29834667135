"""`python -m tests.replay`: see `tests.replay.campaign`."""

import sys

from tests.replay.campaign import main

sys.exit(main())
