"""The door of the command line: ``python -m engine``, and ``dp-query-workbench`` where it is
installed.
"""

import sys

from engine.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
