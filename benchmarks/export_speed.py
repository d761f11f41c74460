"""Time and memory of `spark-prof export` and `query` on a bundle of many kernels.

The bundle is report_speed.py's. The floor is a fresh process that only reads the same columns with
pyarrow, in the same run.

usage: python benchmarks/export_speed.py [--kernels N] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report_speed import CAPTURES, DATA, FLOOR, make_bundle, measure
from spark_prof.traces.bundle import Bundle, table_file

SQL = "SELECT component, count(*), sum(end_ns - start_ns) FROM placed GROUP BY ALL"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="make the bundle there and keep it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary) / "bundle"
        rows = make_bundle(Bundle(DATA / CAPTURES["eager"]), folder, "eager", options.kernels)
        run = [sys.executable, "-m", "spark_prof.cli.main"]
        export = [*run, "export", str(folder), "-o"]
        print(f"{rows} kernels", flush=True)
        kernels = str(folder / table_file("kernels", 0))
        for name, command, output in (
            ("reading the columns", [sys.executable, "-c", FLOOR, kernels], None),
            ("export, .json", [*export, f"{temporary}/t.json"], "t.json"),
            ("export, .json.gz", [*export, f"{temporary}/t.json.gz"], "t.json.gz"),
            ("export, Parquet", [*export, f"{temporary}/tables"], None),
            ("query of placed", [*run, "query", str(folder), SQL], None),
        ):
            seconds, busy, memory = measure(command)
            size = (Path(temporary) / output).stat().st_size if output else 0
            print(f"{name:20} {seconds:7.2f} s  {busy:7.2f} s of processor  "
                  f"{memory / 2**20:6.0f} MiB" + f"  {size / 1e6:9.1f} MB" * bool(output),
                  flush=True)  # fmt: skip
            if output:
                (Path(temporary) / output).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
