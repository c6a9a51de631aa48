"""`python -m smoothrl` is `smoothrl`."""

import sys

from smoothrl.cli.main import main

sys.exit(main())
