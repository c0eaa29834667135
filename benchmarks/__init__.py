"""Tables that anybody can run again; see `benchmarks.__main__`.

Searches start cold: nothing that an earlier run kept on disk may shorten a time.
"""

import os

os.environ["DP_WORKBENCH_CACHE"] = "off"
