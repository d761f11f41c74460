"""Tests of the explorer's pages, most of which draw one with Streamlit's AppTest."""

from __future__ import annotations

from functools import cache

from streamlit.components.v2 import manifest_scanner

# Every run of an AppTest looks for components among all installed packages: most of its time.
manifest_scanner.scan_component_manifests = cache(manifest_scanner.scan_component_manifests)
