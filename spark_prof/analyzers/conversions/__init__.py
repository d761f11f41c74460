"""What changing formats costs, attributed to the work that needs the format."""
