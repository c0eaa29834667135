"""Entry point of the command line: ``python -m engine``, or the script ``dp-query-workbench``."""

import sys

from engine.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
