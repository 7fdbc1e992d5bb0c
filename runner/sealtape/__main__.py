"""`python -m sealtape`: the command, where its script is not on the path."""

import sys

from sealtape.cli import main

sys.exit(main())
