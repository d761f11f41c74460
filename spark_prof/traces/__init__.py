"""The data: table schemas, bundles and the readers of foreign trace formats."""
