"""`python -m compolens.cli`."""

import sys

from compolens.cli import main

sys.exit(main())
