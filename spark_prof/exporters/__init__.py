"""Writes recordings for other tools: Perfetto, spreadsheets, readers of Parquet."""
