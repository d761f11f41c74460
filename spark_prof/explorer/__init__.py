"""The explorer: pages in the browser over prepared recordings, served on this machine only."""
