"""Settings of every test run."""

import os
import tempfile
from pathlib import Path

# before any test module is imported: no test reads or writes the cache of the person who runs it
os.environ["DP_WORKBENCH_CACHE"] = tempfile.mkdtemp(prefix="test-cache-")
# and the app, which may touch files below its own folder alone, may touch those of the tests
os.environ["DP_WORKBENCH_FOLDERS"] = os.pathsep.join([tempfile.gettempdir(), str(Path(__file__).resolve().parents[1])])
os.environ["DP_WORKBENCH_SETTINGS"] = tempfile.mkdtemp(prefix="test-settings-")
