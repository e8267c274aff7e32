"""``python -m swingshift``."""

import sys

from swingshift.cli import main

if __name__ == "__main__":
    sys.exit(main())
