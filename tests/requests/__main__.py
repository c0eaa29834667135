"""`python -m tests.requests`: see `tests.requests.campaign`."""

import sys

from tests.requests.campaign import main

sys.exit(main())
