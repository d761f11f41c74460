"""`python -m spark_prof`: the command `spark-prof` of this very Python."""

from __future__ import annotations

import sys

from spark_prof.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
