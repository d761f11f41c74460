"""What changing formats costs, charged to the work that needs the format."""
