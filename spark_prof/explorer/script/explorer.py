"""The script that Streamlit runs for every view.

Its arguments are the ranks that can be chosen, with commas between, and the sources.
"""

from __future__ import annotations

import sys

from spark_prof.explorer.app import main

main(sys.argv[2:], [int(rank) for rank in sys.argv[1].split(",") if rank])
