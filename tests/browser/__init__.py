"""The explorer as a person meets it: `spark-prof explore` in a real Chromium, without a network.

Pictures of what was seen are in build/screenshots. Where no Chromium is on the path these tests
are skipped, unless SPARK_PROF_NEEDS_BROWSER=1 says that there must be one.
"""
