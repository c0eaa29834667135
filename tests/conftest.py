"""Settings of every test run."""

import os
import tempfile

# before any test module is imported: no test reads or writes the cache of the person who runs it
os.environ["DP_WORKBENCH_CACHE"] = tempfile.mkdtemp(prefix="test-cache-")
