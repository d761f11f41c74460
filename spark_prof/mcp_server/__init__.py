"""The Model Context Protocol: an agent asks recordings, and with leave starts measurements."""
